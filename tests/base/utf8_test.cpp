// Tests which bytes are characters in UTF-8.
#include "base/utf8.hpp"

#include "support/test.hpp"

namespace nearstep {
namespace {

TEST(Utf8, HasEachCharacterInItsShortestForm) {
    EXPECT_TRUE(is_utf8(""));
    EXPECT_TRUE(is_utf8("caf\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80"));
    EXPECT_FALSE(is_utf8("caf\xE9"));   // Latin-1
    EXPECT_FALSE(is_utf8("caf\xC3"));   // cut off
    EXPECT_FALSE(is_utf8("\xC0\xAF"));  // longer than needed
    EXPECT_FALSE(is_utf8("\xE0\x80\xAF"));
    EXPECT_FALSE(is_utf8("\xED\xA0\x80"));      // a surrogate
    EXPECT_FALSE(is_utf8("\xF4\x90\x80\x80"));  // beyond the last character
    EXPECT_EQ(as_utf8("caf\xE9/\xC3\xA9\xFF"), "caf?/\xC3\xA9?");
}

}  // namespace
}  // namespace nearstep
