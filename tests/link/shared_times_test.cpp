#include "link/shared_times.hpp"

#include "link/link.hpp"
#include "mpi/communicator.hpp"
#include "support/test.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace nearstep::link {
namespace {

mpi::Communicator world() { return mpi::Communicator::world(std::chrono::seconds(60)); }

// Shared times, the same on all ranks, with the name already removed.
SharedTimes share(const mpi::Communicator& ranks) {
    const std::string name =
        ranks.broadcast(ranks.rank() == 0 ? SharedTimes::unused_name() : "", 0);
    if (ranks.rank() == 0) {
        SharedTimes times = SharedTimes::create(name);
        ranks.barrier();
        ranks.barrier();
        SharedTimes::remove(name);
        return times;
    }
    ranks.barrier();
    SharedTimes times = SharedTimes::open(name);
    ranks.barrier();
    return times;
}

TEST(SharedTimes, BoundWhatAllProcessesMoveTogether) {
    const mpi::Communicator ranks = world();
    const SharedTimes times = share(ranks);
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
    const SharedTimes times = share(ranks);
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
    const SharedTimes times = share(ranks);
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

TEST(SharedTimes, LeaveNoNameBehind) {
    const mpi::Communicator ranks = world();
    const SharedTimes times = share(ranks);
    ranks.barrier();
    std::error_code unused;
    const std::string mine = "nearstep-links-" + std::to_string(::getpid()) + "-";
    for (const auto& file : std::filesystem::directory_iterator("/dev/shm", unused)) {
        EXPECT_NE(file.path().filename().string().rfind(mine, 0), 0U) << file.path();
    }
    times[0] = 1;  // the memory is still mapped
    EXPECT_EQ(times[0].load(), 1);
    ranks.barrier();
}

TEST(SharedTimes, OfTwoRunsDoNotMeet) {
    EXPECT_NE(SharedTimes::unused_name(), SharedTimes::unused_name());
}

}  // namespace
}  // namespace nearstep::link
