#include "data/pretokenizer.hpp"

#include "data/character_class.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace nearstep::data {

namespace {

using Text = std::span<const std::uint8_t>;

constexpr std::array<std::string_view, 7> kContractions = {"'s", "'t",  "'re", "'ve",
                                                           "'m", "'ll", "'d"};

bool starts_with(Text text, std::string_view word) {
    return text.size() >= word.size() && std::equal(word.begin(), word.end(), text.begin());
}

// Bytes from `begin` on, until a character of another class.
std::size_t end_of_run(Text text, std::size_t begin, CharacterClass kind) {
    std::size_t end = begin;
    while (end < text.size()) {
        const Character next = first_character(text.subspan(end));
        if (next.kind != kind) {
            break;
        }
        end += next.bytes;
    }
    return end;
}

// Spaces belong together, but for the last one in front of a visible character: if it is ' ' it
// belongs to the word behind it.
std::size_t spaces_bytes(Text text) {
    std::size_t last = 0;
    std::size_t end = 0;
    while (end < text.size()) {
        const Character next = first_character(text.subspan(end));
        if (next.kind != CharacterClass::space) {
            return last > 0 ? last : end;
        }
        last = end;
        end += next.bytes;
    }
    return end;
}

// True if a word ends in front of `at`, whatever stands further off.
bool is_gap(Text text, std::size_t at) {
    return at > 0 && (text[at] == ' ' || text[at] == '\n') && text[at - 1] > ' ' &&
           text[at - 1] < 0x7F;
}

}  // namespace

std::size_t first_word_bytes(Text text) {
    if (text.front() == '\'') {
        for (const std::string_view contraction : kContractions) {
            if (starts_with(text, contraction)) {
                return contraction.size();
            }
        }
    }
    const std::size_t start = text.front() == ' ' && text.size() > 1 ? 1 : 0;
    const CharacterClass kind = first_character(text.subspan(start)).kind;
    return kind == CharacterClass::space ? spaces_bytes(text) : end_of_run(text, start, kind);
}

std::vector<std::size_t> cut_between_words(Text text, std::size_t parts) {
    std::vector<std::size_t> cuts = {0};
    for (std::size_t part = 1; part < parts; ++part) {
        std::size_t at = std::max(cuts.back(), text.size() / parts * part);
        while (at < text.size() && !is_gap(text, at)) {
            ++at;
        }
        cuts.push_back(at);
    }
    cuts.push_back(text.size());
    return cuts;
}

}  // namespace nearstep::data
