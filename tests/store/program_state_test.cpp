#include "store/program_state.hpp"

#include "support/places.hpp"
#include "support/test.hpp"

#include <sys/stat.h>
#include <unistd.h>

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

TEST_F(ProgramStateFile, HasWhatTheLineHadAtTheStep) {
    ProgramStatePair of_parent(paths_, {.run = "a"}, 0);
    of_parent.write("a", 4, as_bytes("four"));
    of_parent.write("a", 6, as_bytes("given up"));
    EXPECT_EQ(found(9), "four") << "the line left its parent at step 5";
    EXPECT_EQ(found(3), "none");
    ProgramStatePair pair(paths_, line_, 5);
    pair.write("b", 8, as_bytes("eight"));
    EXPECT_EQ(found(7), "four") << "the newest durable step's is not overwritten";
    pair.write("b", 9, as_bytes("nine"));
    EXPECT_EQ(found(9), "nine");
    EXPECT_EQ(found(8), "eight");
    EXPECT_EQ(found(20), "nine") << "nothing changed since";
    ProgramStatePair again(paths_, line_, 8);  // the commit of step 9 was lost
    again.write("b", 9, as_bytes("nine again"));
    EXPECT_EQ(found(8), "eight");
    EXPECT_EQ(found(9), "nine again");
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
