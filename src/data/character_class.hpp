// Which code points are letters, numbers and spaces, as Unicode says.
#pragma once

#include <cstdint>
#include <span>

namespace nearstep::data {

enum class CharacterClass : std::uint8_t { other, letter, number, space };

// Code points of one class, both ends included.
struct CharacterRange {
    char32_t first;
    char32_t last;
    CharacterClass kind;
};

// All that are not `other`, ascending. In character_ranges.cpp, which a script writes.
std::span<const CharacterRange> character_ranges();

// Of the ranges: "14.0.0".
const char* unicode_version();

// Letters: general category L; numbers: N; spaces: property White_Space.
CharacterClass class_of(char32_t code_point);

// One character of a text in UTF-8.
struct Character {
    CharacterClass kind = CharacterClass::other;
    std::uint32_t bytes = 1;
};

// The first character of a text that is not empty. A byte that does not begin a character in UTF-8
// is one of its own, of class `other`, so that any bytes are a text.
Character first_character(std::span<const std::uint8_t> text);

}  // namespace nearstep::data
