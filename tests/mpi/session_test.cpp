// Tests how long waiting ranks sleep.
#include "mpi/session.hpp"

#include "base/machine.hpp"
#include "mpi/communicator.hpp"
#include "mpi/launch.hpp"
#include "support/test.hpp"

#include <sys/prctl.h>

namespace nearstep::mpi {
namespace {

constexpr int kOfLinux = 50'000;  // ns, unless a program changes it

int slack_ns() { return ::prctl(PR_GET_TIMERSLACK); }

TEST(ShortSleeps, GrowWithTheRanksOfACore) {
    std::thread([] {
        ::prctl(PR_SET_TIMERSLACK, kOfLinux);
        lengthen_short_sleeps(2, 64);
        EXPECT_EQ(slack_ns(), kOfLinux);
        lengthen_short_sleeps(64, 2);
        EXPECT_EQ(slack_ns(), 32 * kOfLinux);
        std::thread([] { EXPECT_EQ(slack_ns(), 32 * kOfLinux); }).join();
    }).join();
}

TEST(ShortSleeps, AreThoseOfTheSessionsRanks) {
    const Communicator world = Communicator::world(std::chrono::seconds(30));
    const int cores = host_cores();
    EXPECT_EQ(ranks_of_host(), world.size());
    EXPECT_GE(slack_ns(), kOfLinux / cores * std::max(world.size(), cores));
}

TEST(ShortSleeps, AreThoseOfTheTasksThatSlurmCounts) {
    Environment environment;
    environment.set("OMPI_COMM_WORLD_LOCAL_SIZE", "");
    environment.set("SLURM_STEP_TASKS_PER_NODE", "4(x2),3");
    EXPECT_EQ(ranks_of_host(), 4);
    environment.set("SLURM_STEP_TASKS_PER_NODE", "");
    EXPECT_EQ(ranks_of_host(), 1);
}

}  // namespace
}  // namespace nearstep::mpi
