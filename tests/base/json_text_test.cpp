// Tests which JSON text is refused because it is nested too deeply.
#include "base/json_text.hpp"

#include "support/test.hpp"

namespace nearstep {
namespace {

std::string nested(std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(JsonText, MayBeNestedAHundredDeep) {
    EXPECT_FALSE(is_nested_too_deeply(nested(100)));
    EXPECT_TRUE(is_nested_too_deeply(nested(101)));
    EXPECT_TRUE(is_nested_too_deeply(std::string(1000, '{')));
    EXPECT_TRUE(is_nested_too_deeply("{\"a\\\"\":" + nested(100) + "}"));
}

TEST(JsonText, MayHaveManySignsBesideEachOtherAndInTexts) {
    std::string beside = "[";
    for (int i = 0; i < 1000; ++i) {
        beside += "{},[],";
    }
    EXPECT_FALSE(is_nested_too_deeply(beside));
    EXPECT_FALSE(is_nested_too_deeply("\"\\\"" + nested(1000) + "\\\\\""));
}

}  // namespace
}  // namespace nearstep
