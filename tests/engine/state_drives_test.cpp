// Tests what is said of the drives that hold the state.
#include "engine/state/state_drives.hpp"

#include "base/error.hpp"
#include "support/test.hpp"

namespace nearstep::engine {
namespace {

constexpr std::size_t kTera = 1'000'000'000'000;

DriveUse use_of_root(double bytes) {
    return {.drive = {.name = "/dev/nvme0n1", .has_root = true},
            .folder = "/home/run",
            .bytes = bytes,
            .step_bytes = bytes / 2,
            .free_bytes = kTera};
}

TEST(StateDrives, MuchOfTheRootFilesystemIsAQuestion) {
    config::CsdSettings csd;
    EXPECT_NO_THROW(expect_choice_of_root({use_of_root(99e9)}, csd));
    const std::string message =
        message_of<ConfigError>([&] { expect_choice_of_root({use_of_root(168e9)}, csd); });
    EXPECT_THAT(message, AllOf(HasSubstr("root filesystem (/dev/nvme0n1)"), HasSubstr("168 GB"),
                               HasSubstr("takes 56 GB"), HasSubstr("csd.path=\"/nvme0/run\""),
                               HasSubstr("csd.rated_tbw=600")));
    csd.rated_tbw = 600;
    EXPECT_NO_THROW(expect_choice_of_root({use_of_root(168e9)}, csd));
    csd.rated_tbw = 0;
    DriveUse other = use_of_root(168e9);
    other.drive.has_root = false;
    EXPECT_NO_THROW(expect_choice_of_root({other}, csd));
}

TEST(StateDrives, TheLineSaysWhatTheDriveBears) {
    config::CsdSettings csd;
    DriveUse use = use_of_root(168e9);
    EXPECT_THAT(
        describe_drives({use}, csd),
        AllOf(HasSubstr("takes 168 GB of state of 1.0 TB free, and each step writes 84 GB"),
              HasSubstr("it tells at most root what it is rated for: say it with csd.rated_tbw=TB"),
              HasSubstr("csd.state=\"compact\" takes 56 GB and writes 28 GB")));
    use.drive.life = {.written_bytes = 12e12};
    EXPECT_THAT(describe_drives({use}, csd),
                HasSubstr("it has taken 12 TB so far, and does not tell what it is rated for"));
    use.drive.life = {.rated_bytes = 600e12, .written_bytes = 12e12};
    EXPECT_THAT(describe_drives({use}, csd),
                HasSubstr("of which 12 TB are written: enough for 7000 steps, or 5 days"));
    csd.rated_tbw = 84;
    csd.state = arith::StateFormat::compact;
    EXPECT_THAT(
        describe_drives({use}, csd),
        AllOf(HasSubstr("rated for 84 TB"), HasSubstr("857 steps"), Not(HasSubstr("compact"))));
    EXPECT_THAT(describe_drives({use, use, use}, csd), HasSubstr("; 1 more drive likewise"));
    use.step_bytes = 0;  // of a manifest alone
    EXPECT_THAT(describe_drives({use}, csd), Not(HasSubstr("enough for")));
    EXPECT_EQ(describe_drives({}, csd), "");
}

TEST(StateDrives, FilesOfOneDriveAreOneUseAndMemoryIsNone) {
    const ScratchFolder folder;
    const std::vector<DriveUse> uses = drive_uses({{folder.file("a/state"), 10},
                                                   {folder.file("b/state"), 20},
                                                   {"/dev/shm/nearstep-test/state", 40}});
    if (!store::lies_in_memory(folder.path())) {
        ASSERT_EQ(uses.size(), 1);
        EXPECT_EQ(uses.front().bytes, 30);
    }
}

}  // namespace
}  // namespace nearstep::engine
