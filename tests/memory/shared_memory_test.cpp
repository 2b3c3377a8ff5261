// Tests memory that processes share.
#include "memory/shared_memory.hpp"

#include "support/test.hpp"

#include <sys/wait.h>
#include <unistd.h>

namespace nearstep::memory {
namespace {

constexpr std::size_t kBytes = 3 * 4096 + 2;
constexpr SharedUse kUse{"a test", "skip it"};

TEST(SharedMemory, IsZeroAndOneForAllWhoOpenItAndOutlivesItsDescriptors) {
    Buffer mine;
    Buffer others;
    {
        const SharedMemory created = SharedMemory::create(kBytes, kUse);
        const SharedMemory opened = SharedMemory::open(created.path(), kBytes, kUse);
        mine = created.map();
        others = opened.map();
    }
    ASSERT_EQ(mine.size(), kBytes);
    ASSERT_EQ(others.size(), kBytes);
    ASSERT_NE(mine.span().data(), others.span().data());
    for (const std::byte value : others.span()) {
        ASSERT_EQ(value, std::byte{0});
    }
    mine.span().back() = std::byte{7};
    EXPECT_EQ(others.span().back(), std::byte{7});
}

TEST(SharedMemory, IsSharedWithAnotherProcess) {
    const SharedMemory created = SharedMemory::create(kBytes, kUse);
    const Buffer mine = created.map();
    const pid_t child = ::fork();
    if (child == 0) {
        Buffer others = SharedMemory::open(created.path(), kBytes, kUse).map();
        others.span()[5] = std::byte{9};
        ::_exit(0);
    }
    int status = 1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
    EXPECT_EQ(mine.span()[5], std::byte{9});
}

// Set a limit first, so that no error in the code can take the machine's memory.
TEST(SharedMemory, RefusesWhatTheSystemDoesNotGive) {
    with_file_limit(4096, [] {
        EXPECT_THROW(SharedMemory::create(kBytes, kUse), ConfigError);
        EXPECT_THROW(SharedMemory::create(std::size_t{1} << 50U, kUse), ConfigError);
    });
    EXPECT_THROW(SharedMemory::open("/proc/self/fd/9999", kBytes, kUse), ConfigError);
}

}  // namespace
}  // namespace nearstep::memory
