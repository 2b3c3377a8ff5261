#include "data/character_class.hpp"

#include <gtest/gtest.h>

#include <string_view>

namespace nearstep::data {
namespace {

Character first_of(std::string_view text) {
    return first_character({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

TEST(CharacterRanges, AscendAndDoNotOverlap) {
    char32_t behind = 0;
    for (const CharacterRange& range : character_ranges()) {
        EXPECT_LE(behind, range.first);
        EXPECT_LE(range.first, range.last);
        EXPECT_NE(range.kind, CharacterClass::other);
        behind = range.last + 1;
    }
    EXPECT_LE(behind, 0x110000U);
}

TEST(CharacterClass, IsUnicodes) {
    for (const char32_t letter : {U'a', U'Z', U'\u00E9', U'\u0416', U'\u6771', U'\U00020000'}) {
        EXPECT_EQ(class_of(letter), CharacterClass::letter) << static_cast<unsigned>(letter);
    }
    for (const char32_t number : {U'0', U'9', U'\u00BD', U'\u0967', U'\u2167'}) {
        EXPECT_EQ(class_of(number), CharacterClass::number) << static_cast<unsigned>(number);
    }
    for (const char32_t space : {U' ', U'\t', U'\n', U'\u0085', U'\u00A0', U'\u2028', U'\u3000'}) {
        EXPECT_EQ(class_of(space), CharacterClass::space) << static_cast<unsigned>(space);
    }
    // A combining accent, the separators that Python alone calls spaces, no character at all.
    for (const char32_t other : {U'!', U'_', U'\u0301', U'\x1C', U'\u200B', char32_t{0x10FFFF}}) {
        EXPECT_EQ(class_of(other), CharacterClass::other) << static_cast<unsigned>(other);
    }
}

TEST(FirstCharacter, HasTheBytesOfItsUtf8) {
    EXPECT_EQ(first_of("ab").bytes, 1U);
    EXPECT_EQ(first_of("\xC3\xA9x").bytes, 2U);
    EXPECT_EQ(first_of("\xE6\x9D\xB1x").bytes, 3U);
    EXPECT_EQ(first_of("\xF0\xA0\x80\x80x").bytes, 4U);
    EXPECT_EQ(first_of("\xF0\xA0\x80\x80").kind, CharacterClass::letter);
}

TEST(FirstCharacter, TakesWhatIsNotUtf8AsSingleBytes) {
    for (const std::string_view text : {
             "\x80",              // a later byte at the start
             "\xC3",              // cut off
             "\xC3(",             // followed by something else
             "\xC0\x80",          // longer than needed
             "\xE0\x80\xA0",      // longer than needed
             "\xED\xA0\x80",      // half of a surrogate pair
             "\xF4\x90\x80\x80",  // behind the last code point
             "\xFF",
         }) {
        EXPECT_EQ(first_of(text).bytes, 1U);
        EXPECT_EQ(first_of(text).kind, CharacterClass::other);
    }
}

}  // namespace
}  // namespace nearstep::data
