// Tests files of tokens: how they are known, read and refused.
#include "data/token_file.hpp"

#include "data/small_token_file.hpp"
#include "data/text.hpp"
#include "data/tokenizer.hpp"
#include "support/test.hpp"

#include <sys/stat.h>

namespace nearstep::data {
namespace {

class TokenFiles : public testing::Test {
protected:
    std::string write(const SmallTokenFile& file, const std::string& name = "tokens") const {
        return folder_.write(name, file.bytes());
    }

    ScratchFolder folder_;
};

std::vector<std::int32_t> numbers(const Tokens& tokens) {
    std::vector<std::int32_t> all(tokens.size());
    tokens.copy(0, all);
    return all;
}

TEST_F(TokenFiles, HoldTokensOfTwoOrFourBytes) {
    SmallTokenFile of;
    for (const std::uint64_t width : {2, 4}) {
        of.width = width;
        const TokenFile file(write(of));
        EXPECT_THAT(numbers(file.tokens()), ElementsAre(0, 1, 2, 3, 1, 1, 2, 0, 3, 2));
        EXPECT_EQ(file.vocabulary(), 4U);
        EXPECT_THAT(numbers(file.tokens().part(3, 5)), ElementsAre(3, 1));
    }
}

TEST_F(TokenFiles, AreKnownByTheirContent) {
    EXPECT_TRUE(TokenFile::is_one(write(SmallTokenFile())));
    EXPECT_FALSE(TokenFile::is_one(folder_.write("short", "nearstep tokens")));
    EXPECT_FALSE(TokenFile::is_one(folder_.write("text", "any text, which is longer than that")));
    EXPECT_FALSE(TokenFile::is_one("/no/such/file"));
    const std::string pipe = folder_.file("pipe");  // which nobody writes to
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    EXPECT_FALSE(TokenFile::is_one(pipe));
}

TEST_F(TokenFiles, SayWhatTheirTokensStandFor) {
    const auto tokenizer = make_tokenizer(TokenFile(write(SmallTokenFile())));
    EXPECT_EQ(tokenizer->vocabulary(), 4U);
    EXPECT_EQ(tokenizer->name(), "file 000000000000004d");
    EXPECT_EQ(tokenizer->bytes_of(3), "\xC3\xA4");
    EXPECT_EQ(tokenizer->bytes_of(4), "");
    EXPECT_EQ(tokenizer->bytes_of(-1), "");
    EXPECT_EQ(decode(*tokenizer, std::vector<std::int32_t>{1, 2, 9}), "ab the?");
    EXPECT_THAT(tokenizer->encode("aab the"), ElementsAre(0, 1, 2));
    EXPECT_THAT(message_of<ConfigError>([&] { tokenizer->encode("abc"); }), HasSubstr("\"c\""));
    EXPECT_NO_THROW(check_vocabulary(*tokenizer, 4));
    EXPECT_THAT(message_of<ConfigError>([&] { check_vocabulary(*tokenizer, 3); }),
                HasSubstr("set model.vocabulary to 4 or more"));
}

TEST_F(TokenFiles, AreTextsToTrainOn) {
    const std::string path = write(SmallTokenFile());
    const Corpus shared = read_corpus({.train = {path}, .valid = {}, .valid_share = 0.3});
    EXPECT_THAT(numbers(shared.train), ElementsAre(0, 1, 2, 3, 1, 1, 2));
    EXPECT_THAT(numbers(shared.valid), ElementsAre(0, 3, 2));
    EXPECT_NE(shared.train_digest, shared.valid_digest);
    const Corpus two = read_corpus({.train = {path}, .valid = {path}});
    EXPECT_EQ(two.train.size(), 10U);
    EXPECT_EQ(two.train_digest, two.valid_digest);
    EXPECT_NE(two.train_digest, shared.train_digest);
}

TEST_F(TokenFiles, StandAlone) {
    const std::string path = write(SmallTokenFile());
    const std::string words = folder_.write("words.txt", "some words");
    for (const config::DataSettings& settings :
         {config::DataSettings{.train = {path, path}, .valid = {}},
          config::DataSettings{.train = {words, path}, .valid = {}},
          config::DataSettings{.train = {path}, .valid = {words}},
          config::DataSettings{.train = {words}, .valid = {path}}}) {
        EXPECT_THAT(message_of<ConfigError>([&] { read_corpus(settings); }),
                    states("data.train", "data.valid"));
    }
    SmallTokenFile other;
    other.tokenizer_digest = 78;
    EXPECT_THAT(message_of<ConfigError>(
                    [&] { read_corpus({.train = {path}, .valid = {write(other, "other")}}); }),
                HasSubstr("different tokenizers"));
}

TEST_F(TokenFiles, AreRefusedIfTheyAreBent) {
    const std::string whole = SmallTokenFile().bytes();
    const auto with = [&](std::size_t at, std::uint64_t number) {
        std::string bent = whole;
        for (std::size_t i = 0; i < 8; ++i) {
            bent.at(at + i) = static_cast<char>(number >> 8 * i);
        }
        return bent;
    };
    constexpr std::uint64_t kHuge = ~std::uint64_t{0};
    const std::size_t ends = 4096 + 24;
    for (const auto& [bytes, words] : std::vector<std::pair<std::string, std::string>>{
             {whole.substr(0, 100), "ends within its header"},
             {whole.substr(0, whole.size() - 1), "longer or shorter"},
             {whole + "x", "longer or shorter"},
             {with(0, 5), "does not begin"},
             {with(16, 2), "version 2"},
             {with(24, 3), "3 bytes"},
             {with(24, kHuge), "bytes, not 2 or 4"},
             {with(32, kHuge), "too short for its"},
             {with(32, 11), "documents end before or after"},
             {with(32, 0), "longer or shorter"},
             {with(40, kHuge / 4), "documents"},
             {with(48, kHuge / 8), "vocabulary"},
             {with(56, kHuge), "texts"},
             {with(ends, 11), "documents do not ascend"},
             {with(ends + 8, 3), "documents do not ascend"},
             {with(ends + 16, 100), "vocabulary do not ascend"}}) {
        const std::string path = folder_.write("bent", bytes);
        const std::string refusal = message_of<ConfigError>([&] { const TokenFile file(path); });
        EXPECT_THAT(refusal, HasSubstr(words));
        EXPECT_THAT(refusal, HasSubstr(path));
    }
    SmallTokenFile beyond;
    beyond.tokens.at(6) = 4;
    const TokenFile file(write(beyond));
    std::vector<std::int32_t> row(3);
    EXPECT_NO_THROW(file.tokens().copy(0, row));
    EXPECT_THAT(message_of<ConfigError>([&] { file.tokens().copy(5, row); }), HasSubstr("token 4"));
}

// The token may be anywhere in a text that is checked in several pieces.
TEST_F(TokenFiles, WithATokenBeyondTheVocabularyAreRefusedAtTheStart) {
    SmallTokenFile of;
    of.tokens.assign(3000, 1);
    of.documents = {3000};
    const config::DataSettings settings{.train = {write(of)}, .valid = {}};
    EXPECT_NO_THROW(read_corpus(settings));
    for (const auto& [tokens, place] : std::vector<std::pair<std::size_t, std::size_t>>{
             {3000, 0}, {3000, 1023}, {3000, 1024}, {3000, 2999}, {2000000, 1998000}}) {
        of.tokens.assign(tokens, 1);
        of.documents = {tokens};
        of.tokens.at(place) = 4;
        write(of);
        EXPECT_THAT(message_of<ConfigError>([&] { read_corpus(settings); }),
                    HasSubstr("has token 4"))
            << place;
    }
}

}  // namespace
}  // namespace nearstep::data
