// Tests what a program keeps beside the state at the two newest steps.
#include "store/program_state.hpp"

#include "store/power_loss.hpp"
#include "support/places.hpp"
#include "support/test.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <tuple>

namespace nearstep::store {
namespace {

std::span<const std::byte> as_bytes(const std::string& text) {
    return std::as_bytes(std::span(text));
}

std::string text_of(const std::optional<ProgramState>& state) {
    return state ? std::string(reinterpret_cast<const char*>(state->bytes.data()),  // NOLINT
                               state->bytes.size())
                 : "none";
}

class ProgramStateFile : public testing::Test {
protected:
    ProgramStateFile() {
        std::filesystem::remove_all(folder_);
        std::filesystem::create_directories(folder_);
    }

    std::string folder_ = std::string(test::kBuildFolder) + "/program-state";
    std::array<std::string, 2> paths_ = {folder_ + "/rank-0.program-0",
                                         folder_ + "/rank-0.program-1"};
    Lineage line_ = {.run = "b", .parents = {{.run = "a", .step = 5}}};

    std::string found(std::int64_t step) {
        return text_of(find_program_state(paths_, line_, step));
    }
};

// Returns what the records name at `step`, as the files have it.
std::string named(const std::vector<ProgramRecord>& records, std::int64_t step,
                  std::span<const std::string> paths) {
    const ProgramRecord* record = record_at(records, step);
    return record == nullptr    ? "unknown"
           : record->bytes == 0 ? ""
                                : text_of(read_program_state(paths, *record));
}

TEST_F(ProgramStateFile, HasWhatTheRecordsNameAtTheTwoNewestSteps) {
    ProgramStatePair pair(paths_);
    pair.begin("a", 0, {});
    EXPECT_EQ(named(pair.records(), 0, paths_), "");
    pair.write("a", 1, as_bytes("one"));
    EXPECT_EQ(named(pair.records(), 0, paths_), "");
    pair.write("a", 2, as_bytes("one"));
    EXPECT_EQ(pair.records().front().step, 1) << "nothing changed, so nothing is written";
    pair.write("a", 3, as_bytes("three"));
    pair.write("a", 4, as_bytes("four"));
    const std::vector<ProgramRecord> records = pair.records();
    EXPECT_EQ(named(records, 9, paths_), "four");
    EXPECT_EQ(named(records, 3, paths_), "three");
    EXPECT_EQ(named(records, 2, paths_), "unknown") << "it was overwritten";
    pair.write("a", 5, as_bytes("five"));
    EXPECT_EQ(named(records, 4, paths_), "four") << "of the newest durable step";
    pair.write("a", 6, {});
    EXPECT_EQ(named(pair.records(), 6, paths_), "");
    EXPECT_EQ(named(pair.records(), 5, paths_), "five");
}

TEST_F(ProgramStateFile, IsNotTakenForThatOfAnotherStepRankOrRun) {
    const ProgramRecord one = write_program_state(paths_[0], "a", 4, as_bytes("same length"));
    EXPECT_EQ(text_of(read_program_state(paths_, one)), "same length");
    for (const auto& [run, step, content] :
         {std::tuple("a", 3, "same length"), {"b", 4, "same length"}, {"a", 4, "other bytes"}}) {
        write_program_state(paths_[0], run, step, as_bytes(content));
        EXPECT_EQ(text_of(read_program_state(paths_, one)), "none");
    }
    write_program_state(paths_[1], "a", 4, as_bytes("same length"));
    EXPECT_EQ(text_of(read_program_state(paths_, one)), "same length");
}

TEST_F(ProgramStateFile, SurvivesAPowerCutWhenItIsWritten) {
    const std::string content(3000, 'x');
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        PowerLossStorage storage(512);
        ProgramStatePair pair(paths_, &storage);
        pair.begin("a", 0, {});
        pair.write("a", 1, as_bytes(content));
        storage.crash(seed);
        EXPECT_EQ(named(pair.records(), 1, paths_), content);
    }
}

TEST_F(ProgramStateFile, GoesOnBesideWhatARestartTook) {
    const ProgramRecord kept = write_program_state(paths_[1], "a", 4, as_bytes("four"));
    write_program_state(paths_[0], "a", 5, as_bytes("of a step that was not committed"));
    ProgramStatePair pair(paths_);
    pair.begin("b", 4, *read_program_state(paths_[1]));
    EXPECT_THAT(pair.records(), testing::ElementsAre(kept)) << "the file stays";
    pair.write("b", 5, as_bytes("five"));
    EXPECT_EQ(text_of(read_program_state(paths_[1])), "four");
    EXPECT_EQ(named(pair.records(), 5, paths_), "five");
    // The state that another rank or a checkpoint had becomes the rank's own.
    ProgramStatePair other({folder_ + "/rank-1.program-0", folder_ + "/rank-1.program-1"});
    other.begin("b", 4, *read_program_state(paths_[1]));
    const auto own = read_program_state(folder_ + "/rank-1.program-0");
    EXPECT_EQ(text_of(own), "four");
    EXPECT_THAT(other.records(), testing::ElementsAre(record_of(*own)));
}

// Files of version 0.2.0, which no manifest names.
TEST_F(ProgramStateFile, HasWhatTheLineHadAtTheStep) {
    write_program_state(paths_[0], "a", 4, as_bytes("four"));
    write_program_state(paths_[1], "a", 6, as_bytes("given up"));
    EXPECT_EQ(found(9), "four") << "the line left its parent at step 5";
    EXPECT_EQ(found(3), "none");
    write_program_state(paths_[1], "b", 8, as_bytes("eight"));
    EXPECT_EQ(found(7), "four");
    EXPECT_EQ(found(20), "eight") << "nothing changed since";
    EXPECT_EQ(text_of(find_program_state(paths_, {.run = "c"}, 9)), "none");
}

TEST_F(ProgramStateFile, IsOneOfOursOrNone) {
    write_program_state(paths_[0], "b", 1, as_bytes("values"));
    ASSERT_EQ(found(1), "values");
    const std::string whole = bytes_of(paths_[0]);
    for (std::size_t at = 0; at < whole.size(); ++at) {
        std::string damaged = whole;
        damaged[at] = static_cast<char>(damaged[at] ^ 1);
        put_bytes(paths_[0], damaged);
        EXPECT_EQ(found(1), "none") << "byte " << at;
        put_bytes(paths_[0], whole.substr(0, at));
        EXPECT_EQ(found(1), "none") << "cut to " << at;
    }
    std::filesystem::remove(paths_[0]);
    EXPECT_EQ(found(1), "none");
    put_bytes(folder_ + "/elsewhere", whole);
    std::filesystem::create_symlink("elsewhere", paths_[0]);
    EXPECT_EQ(found(1), "none") << "a link";
    EXPECT_THROW(write_program_state(paths_[0], "b", 2, as_bytes("x")), Error);
    EXPECT_EQ(std::filesystem::file_size(folder_ + "/elsewhere"), whole.size());
    std::filesystem::remove(paths_[0]);
    ASSERT_EQ(::mkfifo(paths_[0].c_str(), 0600), 0);
    EXPECT_EQ(found(1), "none") << "a pipe";
    std::filesystem::remove(paths_[0]);
    put_bytes(paths_[0], whole);
    ASSERT_EQ(::truncate(paths_[0].c_str(), off_t{1} << 40), 0);
    EXPECT_EQ(found(1), "none") << "a file with a hole";
}

TEST_F(ProgramStateFile, OverwritesNoOtherFile) {
    const std::string thesis = folder_ + "/thesis.tex";
    put_bytes(thesis, "a thesis");
    std::filesystem::create_hard_link(thesis, paths_[0]);
    EXPECT_THROW(write_program_state(paths_[0], "b", 2, as_bytes("x")), ConfigError);
    std::filesystem::remove(paths_[0]);
    std::filesystem::copy_file(thesis, paths_[0]);
    EXPECT_THROW(write_program_state(paths_[0], "b", 2, as_bytes("x")), ConfigError);
    EXPECT_EQ(std::filesystem::file_size(paths_[0]), 8);
    EXPECT_EQ(std::filesystem::file_size(thesis), 8);
    for (const std::string& start :
         {std::string(), std::string("nearstep prog"), std::string(200, '\0')}) {
        std::filesystem::remove(paths_[0]);
        put_bytes(paths_[0], start);  // by a crash
        write_program_state(paths_[0], "b", 2, as_bytes("x"));
        EXPECT_EQ(found(2), "x");
    }
}

}  // namespace
}  // namespace nearstep::store
