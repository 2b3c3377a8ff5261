#include "data/pretokenizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace nearstep::data {
namespace {

using testing::ElementsAre;

std::span<const std::uint8_t> bytes_of(std::string_view text) {
    return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

std::vector<std::string> words_of(std::string_view text) {
    std::vector<std::string> words;
    while (!text.empty()) {
        const std::size_t bytes = first_word_bytes(bytes_of(text));
        words.emplace_back(text.substr(0, bytes));
        text.remove_prefix(bytes);
    }
    return words;
}

TEST(Words, BeginWithTheSpaceInFrontOfThem) {
    EXPECT_THAT(words_of("one two 34!? 5a"), ElementsAre("one", " two", " 34", "!?", " 5", "a"));
}

TEST(Words, LeaveTheLastOfSeveralSpacesToTheNext) {
    EXPECT_THAT(words_of("a   b"), ElementsAre("a", "  ", " b"));
    EXPECT_THAT(words_of("a\n\nb"), ElementsAre("a", "\n", "\n", "b"));
    EXPECT_THAT(words_of("a\n b"), ElementsAre("a", "\n", " b"));
    EXPECT_THAT(words_of("a \n"), ElementsAre("a", " \n"));
    EXPECT_THAT(words_of(" "), ElementsAre(" "));
    EXPECT_THAT(words_of("\xC2\xA0x \xC2\xA0y"),
                ElementsAre("\xC2\xA0", "x", " ", "\xC2\xA0", "y"));
}

TEST(Words, CutContractionsInLowerCase) {
    EXPECT_THAT(words_of("it's we'll'd DON'T"),
                ElementsAre("it", "'s", " we", "'ll", "'d", " DON", "'", "T"));
    EXPECT_THAT(words_of("'re've'm't's"), ElementsAre("'re", "'ve", "'m", "'t", "'s"));
    EXPECT_THAT(words_of(" 's !'s"), ElementsAre(" '", "s", " !'", "s"));
}

TEST(Words, FollowUnicode) {
    EXPECT_THAT(words_of("na\xC3\xAFve \xE6\x9D\xB1\xC2\xBD"),
                ElementsAre("na\xC3\xAFve", " \xE6\x9D\xB1", "\xC2\xBD"));
}

TEST(Words, TakeAnyBytes) {
    EXPECT_THAT(words_of("a\xFF\x80 \xC3"), ElementsAre("a", "\xFF\x80", " \xC3"));
}

TEST(Cuts, LeaveTheWordsAsTheyAre) {
    std::mt19937 random(7);
    const std::vector<std::string> pieces = {
        "a", "bc", " ",        "  ",           "\n",       "'s",  "'",
        "1", "!",  "\xC2\xA0", "\xE3\x80\x80", "\xC3\xA9", "\xFF"};
    for (int round = 0; round < 200; ++round) {
        std::string text;
        for (int i = 0; i < 60; ++i) {
            text += pieces[random() % pieces.size()];
        }
        const std::vector<std::string> whole = words_of(text);
        for (const std::size_t parts : {1U, 2U, 3U, 7U, 500U}) {
            const std::vector<std::size_t> cuts = cut_between_words(bytes_of(text), parts);
            ASSERT_EQ(cuts.size(), parts + 1);
            ASSERT_EQ(cuts.front(), 0U);
            ASSERT_EQ(cuts.back(), text.size());
            std::vector<std::string> words;
            for (std::size_t i = 0; i < parts; ++i) {
                ASSERT_LE(cuts[i], cuts[i + 1]);
                for (std::string& word : words_of(text.substr(cuts[i], cuts[i + 1] - cuts[i]))) {
                    words.push_back(std::move(word));
                }
            }
            EXPECT_EQ(words, whole) << text << " in " << parts << " parts";
        }
    }
}

TEST(Cuts, FallNearEqualParts) {
    std::string text;
    for (int i = 0; i < 1000; ++i) {
        text += "word ";
    }
    const std::vector<std::size_t> cuts = cut_between_words(bytes_of(text), 4);
    for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_NEAR(static_cast<double>(cuts[i + 1] - cuts[i]), 1250, 5);
    }
    EXPECT_EQ(cut_between_words({}, 3), (std::vector<std::size_t>{0, 0, 0, 0}));
}

}  // namespace
}  // namespace nearstep::data
