#include "base/awake_time.hpp"

#include "support/test.hpp"

namespace nearstep {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(AwakeTime, CountsTheTimeBetweenLooks) {
    const AwakeTime::Clock::time_point start{};
    AwakeTime time(start);
    EXPECT_EQ(time.look(start), seconds(0));
    EXPECT_EQ(time.look(start + milliseconds(300)), milliseconds(300));
    EXPECT_EQ(time.look(start + milliseconds(1200)), milliseconds(1200));
}

TEST(AwakeTime, LeavesOutWhatAStoppedProcessDidNotSee) {
    const AwakeTime::Clock::time_point start{};
    AwakeTime time(start);
    EXPECT_EQ(time.look(start + milliseconds(500)), milliseconds(500));
    EXPECT_EQ(time.look(start + seconds(3600)), milliseconds(1500));
    EXPECT_EQ(time.look(start + seconds(7200)), milliseconds(2500));
    EXPECT_EQ(time.look(start + seconds(7200) + milliseconds(200)), milliseconds(2700));
}

}  // namespace
}  // namespace nearstep
