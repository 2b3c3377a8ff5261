// Tests that transfers fall back to threads where io_uring cannot be used.
#include "store/transport.hpp"

#include "memory/buffer.hpp"
#include "store/volume.hpp"
#include "support/forbidden_call.hpp"
#include "support/test.hpp"

namespace nearstep::store {
namespace {

// Exits with 0 if two volumes work with threads.
[[noreturn]] void use_volumes_without(unsigned call, unsigned reason) {
    if (!forbid(call, reason)) {
        std::exit(3);
    }
    const ScratchFolder folder;
    memory::Buffer written(3 * kPageBytes);
    memory::Buffer seen(3 * kPageBytes);
    written.span()[5000] = std::byte{42};
    for (const char* name : {"a", "b"}) {
        Volume volume({.files = {folder.file(name)}, .bytes = written.size()});
        volume.reserve();
        volume.write(written.span(), 0).wait();
        volume.read(seen.span(), 0).wait();
        if (volume.io() != IoKind::threads || seen.span()[5000] != std::byte{42}) {
            std::exit(4);
        }
    }
    std::fprintf(stderr, "both done\n");
    std::exit(0);
}

TEST(TransportDeathTest, FallsBackToThreadsAndSaysSoOnceWhereTheKernelRefuses) {
    EXPECT_EXIT(use_volumes_without(SYS_io_uring_setup, EPERM), testing::ExitedWithCode(0),
                "event=io_uring_refused instead=threads reason=.*Operation not permitted"
                "[^\n]*\nboth done");
}

TEST(TransportDeathTest, FallsBackToThreadsWhereARingIsMadeAndMayNotBeUsed) {
    for (const unsigned reason : {EPERM, EACCES, EINVAL, ENOSYS}) {
        EXPECT_EXIT(use_volumes_without(SYS_io_uring_enter, reason), testing::ExitedWithCode(0),
                    "event=io_uring_refused instead=threads reason=.*io_uring_enter[^\n]*\n"
                    "both done");
    }
}

TEST(TransportDeathTest, RefusesWhereIoUringIsAskedForAndForbidden) {
    EXPECT_EXIT(
        {
            const ScratchFolder folder;
            const bool is_forbidden = forbid(SYS_io_uring_setup, EPERM);
            const std::string message = message_of<ConfigError>([&] {
                const Volume volume(
                    {.files = {folder.file("state")}, .bytes = kPageBytes, .io = IoKind::io_uring});
            });
            std::fprintf(stderr, "%s\n", message.c_str());
            std::exit(is_forbidden ? 0 : 3);
        },
        testing::ExitedWithCode(0), "Operation not permitted.*set csd.io = \"auto\"");
}

}  // namespace
}  // namespace nearstep::store
