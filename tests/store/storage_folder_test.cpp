// Tests the checks of folders for state: space, links, filesystems.
#include "store/storage_folder.hpp"

#include "base/units.hpp"
#include "support/forbidden_call.hpp"
#include "support/test.hpp"

#include <unistd.h>

namespace nearstep::store {
namespace {

TEST(FolderTest, ChecksFoldersAndMakesNone) {
    const ScratchFolder folder;
    const std::vector<PlannedFile> files = {{folder.file("a/b/state"), MiB},
                                            {folder.file("a/state"), MiB}};
    check_folders(files);
    EXPECT_TRUE(fs::is_empty(folder.path()));
    EXPECT_EQ(missing_folders({files.front().path, files.back().path}),
              (std::vector{folder.file("a/b"), folder.file("a")}));
    make_writable_folder(folder.file("a/b"));
    EXPECT_TRUE(fs::is_empty(folder.file("a/b")));
    EXPECT_TRUE(missing_folders({files.front().path}).empty());
}

TEST(FolderTest, RemovesTheFoldersThatWereMissingIfTheyAreEmpty) {
    const ScratchFolder folder;
    const std::vector<std::string> missing = missing_folders({folder.file("a/b/state")});
    make_writable_folder(folder.file("a/b"));
    folder.write("a/other", "of another run");
    remove_empty_folders(missing);
    EXPECT_FALSE(fs::exists(folder.file("a/b")));
    EXPECT_TRUE(fs::exists(folder.file("a/other")));
    fs::remove(folder.file("a/other"));
    remove_empty_folders(missing);
    EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(FolderTest, NamesALinkThatLeadsNowhere) {
    const ScratchFolder folder;
    fs::create_symlink("gone", folder.file("link"));
    fs::create_symlink("loop", folder.file("loop"));
    for (const std::string& link : {folder.file("link"), folder.file("loop")}) {
        for (const std::string& path : {link, link + "/state"}) {
            const std::string message = message_of<PathError>([&] { check_place(path); });
            EXPECT_THAT(message, HasSubstr(link + " is a link that leads nowhere"));
        }
    }
}

TEST(FolderTest, NamesBytesNeededAndFree) {
    const ScratchFolder folder;
    const std::string message = message_of<ConfigError>([&] {
        check_folders({{folder.file("state"), std::size_t{1} << 60}});
    });
    EXPECT_THAT(message, HasSubstr(folder.path()));
    EXPECT_THAT(message, HasSubstr(" free, but "));
    EXPECT_THAT(message, HasSubstr(human_bytes(0x1p60)));
}

TEST(FolderDeathTest, GoesOnWhereAFilesystemDoesNotTellItsSpace) {
    const ScratchFolder folder;
    EXPECT_EXIT(
        {
            const bool is_forbidden = forbid(SYS_statfs, ENOSYS);
            check_folders({{folder.file("state"), std::size_t{1} << 60}});
            std::exit(is_forbidden && !free_bytes_of(folder.path()) ? 0 : 3);
        },
        testing::ExitedWithCode(0), "event=free_space_unknown");
}

TEST(FolderTest, AddsUpTheFilesOfOneFilesystem) {
    const ScratchFolder folder;
    const std::size_t most = std::filesystem::space(folder.path()).available / 4 * 3;
    EXPECT_NO_THROW(check_folders({{folder.file("a/state"), most}}));
    EXPECT_THROW(check_folders({{folder.file("a/state"), most}, {folder.file("b/state"), most}}),
                 ConfigError);
}

TEST(FolderTest, NamesAFolderThatCannotBeMade) {
    const ScratchFolder folder;
    folder.write("plain", "not a folder");
    const std::string message = message_of<ConfigError>([&] {
        check_folders({{folder.file("plain/state/file"), 1}});
    });
    EXPECT_THAT(message,
                HasSubstr("csd.path \"" + folder.file("plain/state") + "\" cannot be made"));
}

TEST(FolderTest, NamesAFolderThatCannotBeWritten) {
    if (::geteuid() == 0) {
        GTEST_SKIP() << "root may write everywhere";
    }
    const ScratchFolder folder;
    std::filesystem::permissions(
        folder.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
    const int code = code_of([&] { check_folders({{folder.file("state"), 1}}); });
    std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_all);
    EXPECT_EQ(code, EACCES);
}

TEST(FolderTest, TriesWhatPermissionsAllow) {
    const std::string message = message_of<ConfigError>([] {
        check_folders({{"/proc/nearstep/state", 1}});
    });
    EXPECT_THAT(message, HasSubstr("\"/proc/nearstep\" cannot be made"));
}

TEST(ExamineFolder, FindsWhatAFileThereWouldAndLeavesNone) {
    const ScratchFolder folder;
    const FolderFacts facts = examine_folder(folder.path());
    EXPECT_TRUE(facts.is_there);
    EXPECT_GT(facts.free_bytes, 0U);
    EXPECT_FALSE(facts.filesystem.empty());
    EXPECT_EQ(facts.is_direct, facts.obstacle.empty()) << facts.obstacle;
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(ExamineFolder, TakesTheClosestFolderThatIsThere) {
    const ScratchFolder folder;
    const FolderFacts facts = examine_folder(folder.file("a/b"));
    EXPECT_FALSE(facts.is_there);
    EXPECT_EQ(facts.filesystem, examine_folder(folder.path()).filesystem);
    EXPECT_FALSE(std::filesystem::exists(folder.file("a")));
}

TEST(ExamineFolder, SaysWhyNoFileCanBeMade) {
    const ScratchFolder folder;
    folder.write("plain", "not a folder");
    const FolderFacts facts = examine_folder(folder.file("plain/state"));
    EXPECT_FALSE(facts.is_direct);
    EXPECT_THAT(facts.obstacle, states(std::strerror(ENOTDIR)));
}

TEST(PrivateFolder, IsThisUsersAlone) {
    const ScratchFolder parent;
    const std::string folder = parent.file("nearstep-state");
    EXPECT_FALSE(is_private_folder(folder));
    make_private_folder(folder);
    EXPECT_EQ(fs::status(folder).permissions(), fs::perms::owner_all);
    EXPECT_NO_THROW(make_private_folder(folder));
    fs::permissions(folder, fs::perms(0755));  // as an earlier version made it
    EXPECT_TRUE(is_private_folder(folder));
    make_private_folder(folder);
    EXPECT_EQ(fs::status(folder).permissions(), fs::perms::owner_all);
    fs::permissions(folder, fs::perms(0777));
    EXPECT_FALSE(is_private_folder(folder));
    EXPECT_THROW(make_private_folder(folder), PathError);
    const std::string link = parent.file("link");
    fs::permissions(folder, fs::perms::owner_all);
    fs::create_directory_symlink(folder, link);
    EXPECT_FALSE(is_private_folder(link));
    EXPECT_THROW(make_private_folder(link), PathError);
}

}  // namespace
}  // namespace nearstep::store
