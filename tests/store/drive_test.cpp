// Tests what a drive says of itself and its wear.
#include "store/drive.hpp"

#include "base/error.hpp"
#include "support/test.hpp"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <array>
#include <fstream>

namespace nearstep::store {
namespace {

using Page = std::array<std::byte, 512>;

TEST(DriveLifeTest, IsWhatTheDriveSaysElseWhatItsWearSays) {
    Page health{};
    Page group{};
    EXPECT_FALSE(life_of_logs({}, {}).written_bytes);
    health[49] = std::byte{1};  // 256 x 512,000 bytes
    EXPECT_DOUBLE_EQ(*life_of_logs(health, {}).written_bytes, 256 * 512e3);
    EXPECT_FALSE(life_of_logs(health, group).rated_bytes);
    health[5] = std::byte{4};  // percent: too few for a rating
    EXPECT_FALSE(life_of_logs(health, {}).rated_bytes);
    health[5] = std::byte{10};
    EXPECT_DOUBLE_EQ(*life_of_logs(health, group).rated_bytes, 2560 * 512e3);
    group[33] = std::byte{2};  // 512e9 bytes
    EXPECT_DOUBLE_EQ(*life_of_logs(health, group).rated_bytes, 512e9);
}

TEST(DriveTest, IsTheDiskOfAPartition) {
    const ScratchFolder root;
    struct stat facts {};
    ASSERT_EQ(::stat(root.path().c_str(), &facts), 0);
    const std::string number = text(major(facts.st_dev), ":", minor(facts.st_dev));
    for (const char* folder : {"proc/self", "sys/dev/block", "sys/devices/nvme0n1/nvme0n1p2"}) {
        fs::create_directories(root.file(folder));
    }
    std::ofstream(root.file("sys/devices/nvme0n1/nvme0n1p2/partition")) << "2\n";
    fs::create_symlink("../../devices/nvme0n1/nvme0n1p2", root.file("sys/dev/block/" + number));
    const Drive drive = drive_of(root.file("not/there"), root.path());
    EXPECT_EQ(drive.name, "/dev/nvme0n1");
    EXPECT_TRUE(drive.has_root);
    EXPECT_FALSE(drive.life.written_bytes);
    fs::remove(root.file("sys/dev/block/" + number));
    std::ofstream(root.file("proc/self/mountinfo"))
        << "27 1 " << number << " / / rw,relatime shared:1 - fuse.x server:/home rw\n";
    EXPECT_EQ(drive_of(root.path(), root.path()).name, "server:/home");
}

}  // namespace
}  // namespace nearstep::store
