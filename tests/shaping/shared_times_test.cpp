// Tests links that several processes share.
#include "memory/shared_memory.hpp"
#include "mpi/communicator.hpp"
#include "shaping/link.hpp"
#include "shaping/node_links.hpp"
#include "support/test.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace nearstep::shaping {
namespace {

mpi::Communicator world() { return mpi::Communicator::world(std::chrono::seconds(60)); }

constexpr memory::SharedUse kUse{"a test", "skip it"};

// Times that all ranks share.
struct SharedTimes {
    explicit SharedTimes(const mpi::Communicator& ranks) {
        std::optional<memory::SharedMemory> memory;
        if (ranks.rank() == 0) {
            memory = memory::SharedMemory::create(NodeLinks::kTimesBytes, kUse);
        }
        const std::string path = ranks.broadcast(memory ? memory->path() : "", 0);
        buffer = memory::SharedMemory::open(path, NodeLinks::kTimesBytes, kUse).map();
        ranks.barrier();
    }

    std::atomic<Time>& operator[](std::size_t i) { return buffer.as<std::atomic<Time>>()[i]; }

    memory::Buffer buffer;
};

TEST(SharedTimes, BoundWhatAllProcessesMoveTogether) {
    const mpi::Communicator ranks = world();
    SharedTimes times(ranks);
    Link link(1e9, times[0]);
    const Clock clock;
    ranks.barrier();
    const Time begin = clock.now();
    const std::size_t bytes = 30'000'000;
    const Time over = cross({&link}, begin, bytes, clock);
    const std::array<double, 2> mine = {static_cast<double>(begin), static_cast<double>(over)};
    const std::vector<double> all = ranks.all_gather(mine);
    double first = all[0];
    double last = all[1];
    for (std::size_t i = 0; i < all.size(); i += 2) {
        first = std::min(first, all[i]);
        last = std::max(last, all[i + 1]);
    }
    EXPECT_GE(last - first, static_cast<double>(bytes) * ranks.size());
}

TEST(SharedTimes, AddUpExactlyWhoeverTakesThem) {
    const mpi::Communicator ranks = world();
    SharedTimes times(ranks);
    Link link(1e9, times[3]);
    ranks.barrier();
    for (int i = 0; i < 10000; ++i) {
        link.take(0, 10);
    }
    ranks.barrier();
    EXPECT_EQ(times[3].load(), 100'000 * ranks.size());
}

TEST(SharedTimes, GoOnWhenAProcessIsKilledInTheMidstOfIt) {
    const mpi::Communicator ranks = world();
    SharedTimes times(ranks);
    Link link(1e9, times[0]);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        while (true) {
            link.take(0, 1);
        }
    }
    ::usleep(20000);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const Clock clock;
    const Time before = std::max(clock.now(), times[0].load());
    EXPECT_GE(link.take(clock.now(), 1000), before);
    ranks.barrier();
}

}  // namespace
}  // namespace nearstep::shaping
