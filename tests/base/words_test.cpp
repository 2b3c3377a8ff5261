// Tests that words of enumerations are read as they are written.
#include "base/words.hpp"

#include "support/test.hpp"

namespace nearstep {

namespace {

enum class Fruit { apple, pear, fig };

}  // namespace

template <>
inline constexpr std::array kWords<Fruit> = {"apple", "pear", "dried fig"};

namespace {

TEST(Words, AreReadAsTheyAreWritten) {
    for (const Fruit fruit : {Fruit::apple, Fruit::pear, Fruit::fig}) {
        EXPECT_EQ(parse_word<Fruit>(name_of(fruit)), fruit);
        EXPECT_EQ(parse_word<Fruit>("fruit", name_of(fruit)), fruit);
    }
    EXPECT_STREQ(name_of(Fruit::fig), "dried fig");
    EXPECT_EQ(parse_word<Fruit>("Apple"), std::nullopt);
    EXPECT_EQ(parse_word<Fruit>(""), std::nullopt);
}

TEST(Words, AreListedWhereOneIsUnknown) {
    try {
        parse_word<Fruit>("fruit", "plum");
        FAIL() << "a plum is none of them";
    } catch (const ConfigError& error) {
        EXPECT_STREQ(error.what(),
                     R"(The fruit "plum" is not known: use "apple", "pear" or "dried fig".)");
    }
}

}  // namespace
}  // namespace nearstep
