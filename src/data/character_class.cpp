#include "data/character_class.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

namespace nearstep::data {

namespace {

constexpr char32_t kAsciiEnd = 0x80;

CharacterClass find_class(char32_t code_point) {
    const std::span<const CharacterRange> ranges = character_ranges();
    const auto behind = std::upper_bound(
        ranges.begin(), ranges.end(), code_point,
        [](char32_t code, const CharacterRange& range) { return code < range.first; });
    return behind == ranges.begin() || (behind - 1)->last < code_point ? CharacterClass::other
                                                                       : (behind - 1)->kind;
}

// Most characters of most texts.
std::array<CharacterClass, kAsciiEnd> classes_of_ascii() {
    std::array<CharacterClass, kAsciiEnd> classes{};
    for (char32_t code = 0; code < kAsciiEnd; ++code) {
        classes.at(code) = find_class(code);
    }
    return classes;
}

// How a character of so many bytes begins, and the smallest code point that needs them: shorter
// ones written longer are not UTF-8.
struct Lead {
    std::uint8_t mask;
    std::uint8_t bits;
    std::uint32_t bytes;
    char32_t lowest;
};
constexpr std::array<Lead, 3> kLeads{
    {{0xE0, 0xC0, 2, 0x80}, {0xF0, 0xE0, 3, 0x800}, {0xF8, 0xF0, 4, 0x10000}}};
constexpr char32_t kSurrogatesBegin = 0xD800;
constexpr char32_t kSurrogatesEnd = 0xE000;
constexpr char32_t kCodePointsEnd = 0x110000;

}  // namespace

CharacterClass class_of(char32_t code_point) {
    static const std::array<CharacterClass, kAsciiEnd> ascii = classes_of_ascii();
    return code_point < kAsciiEnd ? ascii[code_point] : find_class(code_point);
}

Character first_character(std::span<const std::uint8_t> text) {
    const std::uint8_t first = text.front();
    if (first < kAsciiEnd) {
        return {class_of(first), 1};
    }
    for (const Lead& lead : kLeads) {
        if ((first & lead.mask) != lead.bits || text.size() < lead.bytes) {
            continue;
        }
        auto code = static_cast<char32_t>(first & ~lead.mask & 0xFF);
        for (std::size_t i = 1; i < lead.bytes; ++i) {
            if ((text[i] & 0xC0U) != 0x80U) {
                return {};
            }
            code = code << 6U | (text[i] & 0x3FU);
        }
        const bool is_character = code >= lead.lowest && code < kCodePointsEnd &&
                                  (code < kSurrogatesBegin || code >= kSurrogatesEnd);
        return is_character ? Character{class_of(code), lead.bytes} : Character{};
    }
    return {};
}

}  // namespace nearstep::data
