// Tests walks through folders, flushes of folders, and the search for broken links.
#include "base/folder_tree.hpp"

#include "support/forbidden_call.hpp"
#include "support/test.hpp"

#include <cerrno>
#include <cstdlib>

namespace nearstep {
namespace {

class FolderTree : public testing::Test {
protected:
    void SetUp() override {
        fs::create_directories(top_ / "empty");
        for (const char* name : {"1", "a/2", "a/b/3"}) {
            top_folder_.write(name, name);
        }
        fs::create_directory_symlink(outside_, top_ / "link");
        outside_folder_.write("kept", "kept");
    }

    ScratchFolder top_folder_;
    ScratchFolder outside_folder_;
    fs::path top_ = top_folder_.path();
    fs::path outside_ = outside_folder_.path();
};

TEST_F(FolderTree, VisitsAFolderAfterWhatItHoldsAndFollowsNoLink) {
    std::vector<std::string> seen;
    walk_tree(
        top_, [](const fs::path&) { return true; },
        [&](const fs::directory_entry& entry) {
            seen.push_back(entry.path().lexically_relative(top_).string());
        });
    EXPECT_THAT(seen,
                testing::UnorderedElementsAre("1", "a", "a/2", "a/b", "a/b/3", "empty", "link"));
    const auto place = [&](const char* name) { return std::ranges::find(seen, name); };
    EXPECT_LT(place("a/b/3"), place("a/b"));
    EXPECT_LT(place("a/b"), place("a"));
}

TEST_F(FolderTree, EntersOnlyWhatItIsToldTo) {
    std::size_t files = 0;
    walk_tree(
        top_, [](const fs::path& folder) { return folder.filename() != "b"; },
        [&](const fs::directory_entry& entry) { files += entry.is_regular_file() ? 1 : 0; });
    EXPECT_EQ(files, 2);
}

TEST(FlushFolderDeathTest, SaysOnceWhereAFilesystemCannot) {
    const ScratchFolder folder;
    EXPECT_EXIT(
        {
            const bool is_forbidden = forbid(SYS_fsync, EINVAL);
            const bool succeeds =
                flush_folder(folder.path()) == 0 && flush_folder(folder.path()) == 0;
            std::exit(is_forbidden && succeeds ? 0 : 3);
        },
        testing::ExitedWithCode(0), "^nearstep event=folder_not_flushed [^\n]*power cut\"\n$");
    EXPECT_EXIT(
        {
            forbid(SYS_fsync, EIO);
            std::exit(flush_folder(folder.path()));
        },
        testing::ExitedWithCode(EIO), "^$");
}

TEST(BrokenLinks, AreFoundAmongThePartsOfAPath) {
    const ScratchFolder folder;
    fs::create_symlink("gone", folder.file("link"));
    EXPECT_EQ(broken_link_in(folder.file("link/a/b")), folder.file("link"));
    EXPECT_EQ(broken_link_in(folder.file("a/b")), "");
    EXPECT_EQ(broken_link_in(folder.path()), "");
}

}  // namespace
}  // namespace nearstep
