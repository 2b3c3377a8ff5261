// Checks the bytes of names and settings. Used by config and by what writes JSON.
#include "base/utf8.hpp"

#include <cstddef>

namespace nearstep {

namespace {

unsigned code_of(char byte) { return static_cast<unsigned char>(byte); }

// Bytes of the character at the front; 0 if that is none (RFC 3629).
std::size_t length_of_character(std::string_view bytes) {
    const unsigned first = code_of(bytes.front());
    const std::size_t length = first < 0x80                     ? 1
                               : first >= 0xC2 && first <= 0xDF ? 2
                               : first >= 0xE0 && first <= 0xEF ? 3
                               : first >= 0xF0 && first <= 0xF4 ? 4
                                                                : 0;
    if (length < 2 || bytes.size() < length) {
        return length == 1 ? 1 : 0;
    }
    for (const char next : bytes.substr(1, length - 1)) {
        if ((code_of(next) & 0xC0U) != 0x80) {
            return 0;
        }
    }
    // Longer forms than needed, surrogates, and numbers beyond the last character.
    const unsigned second = code_of(bytes[1]);
    const bool is_wrong = (first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
                          (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F);
    return is_wrong ? 0 : length;
}

}  // namespace

bool is_utf8(std::string_view bytes) {
    while (!bytes.empty()) {
        const std::size_t length = length_of_character(bytes);
        if (length == 0) {
            return false;
        }
        bytes.remove_prefix(length);
    }
    return true;
}

std::string as_utf8(std::string_view bytes) {
    std::string mended;
    while (!bytes.empty()) {
        const std::size_t length = length_of_character(bytes);
        mended += length == 0 ? "?" : bytes.substr(0, length);
        bytes.remove_prefix(length == 0 ? 1 : length);
    }
    return mended;
}

}  // namespace nearstep
