// Tests that planned faults happen at their phase, count and rank, and nowhere else.
#include "base/fault_point.hpp"

#include "support/test.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace nearstep {
namespace {

TEST(FaultPointsTest, DoNothingWithoutAPlan) {
    FaultPoints without;
    FaultPoints empty("", 0);
    EXPECT_FALSE(without.is_armed());
    EXPECT_FALSE(empty.is_armed());
    EXPECT_EQ(without.arrive(FaultPhase::mid_write), FaultAction::none);
    EXPECT_EQ(empty.arrive(FaultPhase::after_scatter), FaultAction::none);
}

TEST(FaultPointsTest, FireOnceAtThePlannedCountOfThePlannedPhase) {
    FaultPoints points("rank=2 phase=mid_write count=3 action=fail", 2);
    EXPECT_TRUE(points.is_armed());
    EXPECT_EQ(points.arrive(FaultPhase::mid_write), FaultAction::none);
    EXPECT_EQ(points.arrive(FaultPhase::mid_read), FaultAction::none);
    EXPECT_EQ(points.arrive(FaultPhase::mid_write), FaultAction::none);
    EXPECT_EQ(points.arrive(FaultPhase::mid_write), FaultAction::fail);
    EXPECT_EQ(points.arrive(FaultPhase::mid_write), FaultAction::none);
}

TEST(FaultPointsTest, SayWhichFailureIsPlanned) {
    FaultPoints full("phase=before_flush action=full", 0);
    EXPECT_EQ(full.arrive(FaultPhase::before_flush), FaultAction::full);
    FaultPoints fails("phase=before_flush action=fail", 0);
    EXPECT_EQ(fails.arrive(FaultPhase::before_flush), FaultAction::fail);
    FaultPoints kills("phase=before_flush", 0);
    EXPECT_EQ(kills.arrive(FaultPhase::before_flush), FaultAction::kill);
}

TEST(FaultPointsTest, PassOverFailuresWhereNothingCanFail) {
    FaultPoints points("phase=after_scatter action=full", 0);
    points.pass(FaultPhase::after_scatter);
}

TEST(FaultPointsTest, SpareOtherRanks) {
    FaultPoints points("rank=2 phase=mid_write", 1);
    EXPECT_FALSE(points.is_armed());
    EXPECT_EQ(points.arrive(FaultPhase::mid_write), FaultAction::none);
}

TEST(FaultPointsDeathTest, EndTheProcessAsKillDoes) {
    FaultPoints points("phase=after_commit", 0);
    points.pass(FaultPhase::before_commit);
    EXPECT_EXIT(points.pass(FaultPhase::after_commit), testing::KilledBySignal(SIGKILL), "");
}

TEST(FaultPointsTest, HoldTheProcessUntilItIsToldToGoOn) {
    const pid_t child = ::fork();
    if (child == 0) {
        FaultPoints points("phase=after_commit action=stop", 0);
        ::_exit(points.arrive(FaultPhase::after_commit) == FaultAction::none ? 7 : 8);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
    EXPECT_TRUE(WIFSTOPPED(status));
    ::kill(child, SIGCONT);
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

TEST(FaultPointsTest, RefuseAPlanThatTheyDoNotUnderstand) {
    for (const std::string plan : {"phase=lunch", "rank", "rank=-1", "count=many", "action=sleep",
                                   "action=", "action=none", "phase=mid_read  count=1"}) {
        EXPECT_THROW(FaultPoints(plan, 0), ConfigError) << plan;
    }
}

}  // namespace
}  // namespace nearstep
