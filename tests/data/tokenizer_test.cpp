#include "data/tokenizer.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "data/small_tokenizer.hpp"
#include "data/text.hpp"
#include "store/scratch_folder.hpp"
#include "support/places.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <string_view>

namespace nearstep::data {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::span<const std::uint8_t> as_bytes(std::string_view text) {
    return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

std::string as_text(const Tokenizer& tokenizer, const std::vector<Token>& tokens) {
    return decode(tokenizer, std::vector<std::int32_t>(tokens.begin(), tokens.end()));
}

std::string every_byte() {
    std::string all(256, '\0');
    std::iota(all.begin(), all.end(), '\0');
    return all;
}

TEST(Bytes, AreTokens) {
    const auto tokenizer = make_tokenizer("bytes");
    EXPECT_EQ(tokenizer->vocabulary(), 256U);
    EXPECT_EQ(tokenizer->name(), "bytes");
    EXPECT_THAT(tokenizer->encode(as_bytes("A\xFF"), 1), ElementsAre(65, 255));
    EXPECT_EQ(as_text(*tokenizer, tokenizer->encode(as_bytes(every_byte()), 2)), every_byte());
    EXPECT_EQ(decode(*tokenizer, std::vector<std::int32_t>{72, 256, -1}), "H??");
}

class SmallTokenizer : public testing::Test {
protected:
    void SetUp() override { write_small_tokenizer(folder()); }

    const std::string& folder() const { return scratch_.path(); }

    // Replaces the files.
    void write(const std::string& entries, const std::string& merges) const {
        std::ofstream(scratch_.file("encoder.json")) << entries;
        std::ofstream(scratch_.file("vocab.bpe")) << merges;
    }

    // The texts of the tokens of `text`.
    std::vector<std::string> pieces(const Tokenizer& tokenizer, std::string_view text) const {
        std::vector<std::string> out;
        for (const Token token : tokenizer.encode(as_bytes(text), 1)) {
            out.emplace_back(tokenizer.bytes_of(token));
        }
        return out;
    }

private:
    ScratchFolder scratch_;
};

TEST_F(SmallTokenizer, MergesTheFirstRankFirstAndFromTheLeft) {
    const auto tokenizer = make_tokenizer(folder());
    EXPECT_EQ(tokenizer->vocabulary(), 262U);
    EXPECT_THAT(pieces(*tokenizer, "abc"), ElementsAre("abc"));
    EXPECT_THAT(pieces(*tokenizer, "aab"), ElementsAre("a", "ab"));
    EXPECT_THAT(pieces(*tokenizer, "aaa"), ElementsAre("aa", "a"));
    EXPECT_THAT(pieces(*tokenizer, "aaaaa"), ElementsAre("aaaa", "a"));
    EXPECT_THAT(pieces(*tokenizer, "bcbc"), ElementsAre("bc", "bc"));
    EXPECT_THAT(pieces(*tokenizer, "a a  a"), ElementsAre("a", " a", " ", " a"));
}

TEST_F(SmallTokenizer, GivesEveryByteBack) {
    const auto tokenizer = make_tokenizer(folder());
    const std::string text = every_byte() + "aaabbb \xC3\xA9" + every_byte();
    EXPECT_EQ(as_text(*tokenizer, tokenizer->encode(as_bytes(text), 1)), text);
    EXPECT_TRUE(tokenizer->encode({}, 3).empty());
}

TEST_F(SmallTokenizer, GivesTheSameTokensWithAnyNumberOfThreads) {
    const auto tokenizer = make_tokenizer(folder());
    std::string text(3 << 20, 'a');
    for (std::size_t i = 0; i < text.size(); i += 1 + i % 13) {
        text[i] = " abc\n'"[i % 6];
    }
    const auto one = tokenizer->encode(as_bytes(text), 1);
    EXPECT_EQ(tokenizer->encode(as_bytes(text), 2), one);
    EXPECT_EQ(tokenizer->encode(as_bytes(text), 5), one);
    EXPECT_EQ(as_text(*tokenizer, one), text);
}

TEST_F(SmallTokenizer, TakesALongWordInOnePass) {
    const auto tokenizer = make_tokenizer(folder());
    const std::string text(1 << 20, 'a');  // quadratic work would take hours
    EXPECT_EQ(tokenizer->encode(as_bytes(text), 1).size(), text.size() / 4);
}

TEST_F(SmallTokenizer, IsNamedByItsContent) {
    const std::string merges = "#version: 0.2\na b\na a\n";
    write(small_entries() + "}", merges);
    const std::string name = make_tokenizer(folder())->name();
    EXPECT_EQ(name.rfind("gpt2 ", 0), 0U);
    write(small_entries() + "\n}\n", merges);
    EXPECT_EQ(make_tokenizer(folder())->name(), name) << "white space says nothing";
    write(small_entries() + "}", "#version: 0.2\na a\na b\n");
    EXPECT_NE(make_tokenizer(folder())->name(), name);
}

TEST_F(SmallTokenizer, IsRefusedInOneSentenceIfItsFilesMakeNoSense) {
    const auto refusal = [](const std::string& from) {
        return message_of<ConfigError>([&] { make_tokenizer(from); });
    };
    const auto refusal_of = [&](const std::string& entries, const std::string& merges) {
        write(entries, merges);
        return refusal(folder());
    };
    const std::string all = small_entries() + "}";
    EXPECT_THAT(refusal("no/such"),
                HasSubstr("no/such/encoder.json cannot be read: name in data.tokenizer"));
    EXPECT_THAT(refusal_of("{\"a\": 0", "a b\n"), HasSubstr("no JSON object"));
    EXPECT_THAT(refusal_of("[1]", "a b\n"), HasSubstr("no JSON object"));
    EXPECT_THAT(refusal_of("{\"a\": 0, \"b\": 0}", "a b\n"), HasSubstr("makes no sense"));
    EXPECT_THAT(refusal_of("{\"a\": \"0\"}", "a b\n"), HasSubstr("makes no sense"));
    EXPECT_THAT(refusal_of("{\"a\": 7}", "a b\n"), HasSubstr("makes no sense"));
    EXPECT_THAT(refusal_of("{\"\xE6\x9D\xB1\": 0}", "a b\n"), HasSubstr("makes no sense"));
    const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
    EXPECT_THAT(refusal_of("{\"a\": " + deep + "}", "a b\n"), HasSubstr("makes no sense"));
    EXPECT_THAT(refusal_of("{\"a\\n\": -1}", "a b\n"), Not(HasSubstr("\n")));
    EXPECT_THAT(refusal_of("{\"a\": 0, \"b\": 1}", "a b\n"), HasSubstr("2 of the 256 bytes"));
    EXPECT_THAT(refusal_of(all, "#version: 0.2\n"), HasSubstr("no merges"));
    EXPECT_THAT(refusal_of(all, "ab\n"), HasSubstr("fits no tokens"));
    EXPECT_THAT(refusal_of(all, "b a\n"), HasSubstr("fits no tokens"));
    fs::remove(folder() + "/vocab.bpe");
    EXPECT_THAT(refusal(folder()), HasSubstr("vocab.bpe cannot be read"));
}

TEST_F(SmallTokenizer, MustFitTheModel) {
    const auto tokenizer = make_tokenizer(folder());
    EXPECT_NO_THROW(check_vocabulary(*tokenizer, "folder", 262));
    EXPECT_EQ(message_of<ConfigError>([&] { check_vocabulary(*tokenizer, "folder", 256); }),
              "model.vocabulary = 256 does not hold the 262 tokens of data.tokenizer = \"folder\": "
              "set model.vocabulary to 262 or more.");
}

// GPT-2's own files. What is expected comes from OpenAI's tiktoken and Hugging Face's tokenizers.
class Gpt2 : public testing::Test {
protected:
    void SetUp() override {
        if (!fs::exists(gpt2_)) {
            GTEST_SKIP() << "there is no " << gpt2_;
        }
    }

    const std::string gpt2_ = std::string(test::kSharedData) + "/tokenizers/gpt2";
};

TEST_F(Gpt2, GivesTheTokensOfOtherImplementations) {
    const auto tokenizer = make_tokenizer(gpt2_);
    EXPECT_EQ(tokenizer->vocabulary(), 50257U);
    const auto encode = [&](std::string_view text) { return tokenizer->encode(as_bytes(text), 1); };
    EXPECT_THAT(encode("Hello, world! It's 2026.\n\n  Two spaces"),
                ElementsAre(15496, 11, 995, 0, 632, 338, 1160, 2075, 13, 628, 220, 4930, 9029));
    EXPECT_THAT(encode("don't DON'T we'll'd  \t\n x"),
                ElementsAre(9099, 470, 23917, 6, 51, 356, 1183, 1549, 220, 220, 197, 198, 2124));
    EXPECT_THAT(encode("na\u00EFve \u00DCn\u00EFcode \u2014 \u6771\u4EAC \u0967\u0968\u0969 "
                       "\U0001F642\u00A0x"),
                ElementsAre(2616, 38776, 49363, 77, 26884, 8189, 851, 10545, 251, 109, 12859, 105,
                            220, 24231, 100, 24231, 101, 24231, 102, 32485, 1849, 87));
    EXPECT_THAT(encode(" \n"), ElementsAre(220, 198));
    EXPECT_EQ(decode(*tokenizer, std::vector<std::int32_t>{15496, 11, 995, 0}), "Hello, world!");
}

struct SharedText {
    const char* file;
    std::size_t tokens;
    const char* xxh3;  // of the tokens as 16-bit little-endian numbers
};

class Gpt2On : public Gpt2, public testing::WithParamInterface<SharedText> {};

TEST_P(Gpt2On, GivesAllTokensOfOtherImplementations) {
    const std::string path = std::string(test::kSharedData) + "/" + GetParam().file;
    if (!fs::exists(path)) {
        GTEST_SKIP() << "there is no " << path;
    }
    const std::vector<std::uint8_t> text = read_text({path});
    const auto tokenizer = make_tokenizer(gpt2_);
    const std::vector<Token> tokens = tokenizer->encode(text, 2);
    EXPECT_EQ(tokens.size(), GetParam().tokens);
    EXPECT_EQ(to_hex(xxh3(std::as_bytes(std::span(tokens)))), GetParam().xxh3);
    EXPECT_EQ(as_text(*tokenizer, tokens), std::string(text.begin(), text.end()));
}

INSTANTIATE_TEST_SUITE_P(
    Texts, Gpt2On,
    testing::Values(SharedText{"shakespeare/input.txt", 338025, "182ca92e5023d0fa"},
                    SharedText{"gutenberg/valid.txt", 221975, "d0e36a14cc21605a"},
                    SharedText{"gutenberg/train.txt", 7460541, "d113c1d155e5cf9a"}));

}  // namespace
}  // namespace nearstep::data
