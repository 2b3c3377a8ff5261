// Tests which files a text consists of, and which part is held out.
#include "data/text.hpp"

#include "support/test.hpp"

#include <sys/stat.h>

namespace nearstep::data {
namespace {

class Text : public testing::Test {
protected:
    ScratchFolder folder_;
};

std::string as_string(const std::vector<std::uint8_t>& bytes) {
    return {bytes.begin(), bytes.end()};
}

std::string as_string(const Tokens& tokens) {
    std::vector<std::int32_t> numbers(tokens.size());
    tokens.copy(0, numbers);
    return {numbers.begin(), numbers.end()};
}

// Tokens 0, 1, 2, ...
Tokens counting_text(std::size_t tokens) {
    std::vector<std::uint8_t> text(tokens);
    std::iota(text.begin(), text.end(), std::uint8_t{0});
    return Tokens(text);
}

TEST_F(Text, KeepsTheOrderOfFilesAndSortsFolders) {
    const std::string last = folder_.write("z.txt", "last ");
    folder_.write("in/b.txt", "b ");
    folder_.write("in/a/two.txt", "a/two ");
    folder_.write("in/a/one.txt", "a/one ");
    folder_.write("in/c.txt", "c ");
    EXPECT_EQ(as_string(read_text({last, folder_.file("in"), last}).bytes),
              "last a/one a/two b c last ");
}

TEST_F(Text, PassesOverHiddenFilesInFolders) {
    folder_.write("in/a.txt", "seen");
    folder_.write("in/.hidden.txt", "hidden");
    folder_.write("in/.git/config.txt", "hidden too");
    const PlainText read = read_text({folder_.file("in")});
    EXPECT_EQ(as_string(read.bytes), "seen");
    EXPECT_THAT(read.notes, testing::IsEmpty());
}

TEST_F(Text, SaysWhatItLeavesOutOfFolders) {
    folder_.write("in/a.txt", "\xEF\xBB\xBFseen");
    const std::string binary = folder_.write("in/b.bin", std::string("x\0y", 3));
    const std::string packed = folder_.write("in/c.gz", "\x1F\x8B\x08 packed");
    folder_.write("in/d.gz", "\x1F\x8B\x08 packed");
    const std::string utf16 = folder_.write("in/e.txt", "\xFF\xFE\x42\x4E");
    fs::create_symlink("gone", folder_.file("in/f"));
    fs::create_symlink("g", folder_.file("in/g"));
    fs::create_directory_symlink(".", folder_.file("in/h"));
    ASSERT_EQ(::mkfifo(folder_.file("in/pipe").c_str(), 0600), 0);
    const PlainText read = read_text({folder_.file("in")}, "data.valid");
    EXPECT_EQ(as_string(read.bytes), "seen");
    const auto quoted = [&](const char* name) { return '"' + folder_.file(name) + '"'; };
    EXPECT_EQ(read.notes,
              (std::vector<std::string>{
                  "data.valid leaves out what is text in UTF-16: 1 name, 4 B, the first " +
                      quoted("in/e.txt"),
                  "data.valid leaves out what is compressed data: 2 names, 20 B, the first " +
                      quoted("in/c.gz"),
                  "data.valid leaves out what is binary data: 1 name, 3 B, the first " +
                      quoted("in/b.bin"),
                  "data.valid leaves out what is a link that leads nowhere: 2 names, 0 B, the "
                  "first " +
                      quoted("in/f"),
                  "data.valid leaves out what is a link to a folder: 1 name, 0 B, the first " +
                      quoted("in/h"),
                  "data.valid leaves out what is a pipe, a socket or a device: 1 name, 0 B, the "
                  "first " +
                      quoted("in/pipe")}));
    for (const std::string& named : {binary, packed, utf16}) {
        const PlainText as_it_is = read_text({named});
        EXPECT_EQ(as_string(as_it_is.bytes), bytes_of(named));
        ASSERT_EQ(as_it_is.notes.size(), 1U);
        EXPECT_THAT(as_it_is.notes.front(), HasSubstr(named));
    }
}

TEST_F(Text, RefusesMissingAndEmptyPathsInOneSentence) {
    EXPECT_EQ(message_of<ConfigError>([] { read_text({"no/such/path"}); }),
              "The data path \"no/such/path\" does not exist: correct data.train or data.valid.");
    fs::create_symlink("gone", folder_.file("link"));
    EXPECT_THAT(message_of<ConfigError>([&] { read_text({folder_.file("link")}); }),
                HasSubstr(folder_.file("link") + "\" is a link that leads nowhere"));
    fs::create_symlink("gone", (fs::create_directory(folder_.file("in")), folder_.file("in/link")));
    EXPECT_THAT(message_of<ConfigError>([&] { read_text({folder_.file("in")}); }),
                HasSubstr(folder_.file("in/link")));
    const std::string empty = folder_.write("empty.txt", "");
    EXPECT_EQ(
        message_of<ConfigError>([&] { read_text({empty}); }),
        "No text was found in \"" + empty + "\": name files or folders with text in data.train.");
    EXPECT_THROW(read_text({}), ConfigError);
    const std::string pipe = folder_.file("pipe");  // which nobody writes to
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    EXPECT_THAT(message_of<ConfigError>([&] { read_text({pipe}); }), HasSubstr(pipe));
}

TEST_F(Text, HoldsOutTheLastShareOrTheNamedFiles) {
    const std::string path = folder_.write("text.txt", "0123456789abcdefghij");
    const Corpus shared = read_corpus({.train = {path}, .valid = {}, .valid_share = 0.25});
    EXPECT_EQ(as_string(shared.train), "0123456789abcde");
    EXPECT_EQ(as_string(shared.valid), "fghij");

    const std::string other = folder_.write("other.txt", "held out");
    const Corpus named = read_corpus({.train = {path}, .valid = {other}});
    EXPECT_EQ(named.train.size(), 20U);
    EXPECT_EQ(as_string(named.valid), "held out");
}

TEST(Lengths, MustExceedARow) {
    Corpus ten;
    ten.train = ten.valid = counting_text(10);
    const config::DataSettings bytes{.train = {"t"}, .valid = {"v"}};
    EXPECT_EQ(
        message_of<ConfigError>([&] { check_lengths(ten, bytes, 10); }),
        "The training text has 10 bytes and a row of model.context 10 needs 11: give more text in "
        "data.train or lower model.context.");
    EXPECT_NO_THROW(check_lengths(ten, bytes, 9));
    Corpus few_held_out;
    few_held_out.train = counting_text(8);
    few_held_out.valid = counting_text(2);
    const config::DataSettings shared{.train = {"t"}, .valid = {}};
    EXPECT_EQ(message_of<ConfigError>([&] { check_lengths(few_held_out, shared, 4); }),
              "The held-out text has 2 bytes and a row of model.context 4 needs 5: raise "
              "data.valid_share, set data.valid or lower model.context.");
}

TEST(Rows, AreTheSameHoweverRanksShareThem) {
    const auto text = counting_text(211);
    constexpr int kRows = 12;
    constexpr std::size_t kContext = 7;
    const auto draw = [&](int rows_per_rank, std::int64_t step, std::uint64_t seed) {
        std::vector<std::int32_t> all(std::size_t{2} * kRows * kContext);
        const std::span<std::int32_t> tokens = std::span(all).first(all.size() / 2);
        const std::span<std::int32_t> targets = std::span(all).last(all.size() / 2);
        const std::size_t elems = static_cast<std::size_t>(rows_per_rank) * kContext;
        for (int first = 0; first < kRows; first += rows_per_rank) {
            const std::size_t offset = static_cast<std::size_t>(first) * kContext;
            draw_rows(text, seed, step, first, rows_per_rank, kContext,
                      tokens.subspan(offset, elems), targets.subspan(offset, elems));
        }
        return all;
    };
    const auto whole = draw(kRows, 5, 1);
    for (const int rows_per_rank : {1, 2, 3, 6}) {
        EXPECT_EQ(draw(rows_per_rank, 5, 1), whole) << rows_per_rank << " rows per rank";
    }
    EXPECT_NE(draw(kRows, 6, 1), whole);
    EXPECT_NE(draw(kRows, 5, 2), whole);
}

TEST(Rows, HaveTheNextTokenAsTarget) {
    const auto text = counting_text(200);
    std::vector<std::int32_t> tokens(std::size_t{30} * 5);
    std::vector<std::int32_t> targets(tokens.size());
    draw_rows(text, 1, 1, 0, 30, 5, tokens, targets);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        EXPECT_EQ(targets[i], tokens[i] + 1);
        if (i % 5 != 0) {
            EXPECT_EQ(tokens[i], targets[i - 1]);
        }
    }
}

TEST(Rows, ReachTheFirstAndTheLastToken) {
    const auto text = counting_text(8);
    std::vector<std::int32_t> tokens(std::size_t{100} * 5);
    std::vector<std::int32_t> targets(tokens.size());
    draw_rows(text, 1, 1, 0, 100, 5, tokens, targets);
    EXPECT_THAT(tokens, testing::Contains(0));
    EXPECT_THAT(targets, testing::Contains(7));

    const auto shortest = counting_text(6);
    draw_rows(shortest, 1, 1, 0, 1, 5, std::span(tokens).first(5), std::span(targets).first(5));
    EXPECT_THAT(std::span(targets).first(5), testing::ElementsAre(1, 2, 3, 4, 5));
    EXPECT_THROW(draw_rows(counting_text(5), 1, 1, 0, 1, 5, std::span(tokens).first(5),
                           std::span(targets).first(5)),
                 ContractError);
}

TEST(EvaluationRows, AreSpreadEvenlyOverTheText) {
    const auto text = counting_text(104);
    std::vector<std::int32_t> tokens(4);
    std::vector<std::int32_t> targets(4);
    for (std::int32_t row = 0; row < 5; ++row) {
        evaluation_row(text, row, 5, 4, tokens, targets);
        EXPECT_THAT(tokens,
                    testing::ElementsAre(20 * row, 20 * row + 1, 20 * row + 2, 20 * row + 3));
        EXPECT_THAT(targets,
                    testing::ElementsAre(20 * row + 1, 20 * row + 2, 20 * row + 3, 20 * row + 4));
    }
    EXPECT_THROW(evaluation_row(text, 5, 5, 4, tokens, targets), ContractError);
}

}  // namespace
}  // namespace nearstep::data
