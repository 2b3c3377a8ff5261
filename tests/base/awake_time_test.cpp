// Tests that time during which the process was stopped is not counted.
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
    EXPECT_EQ(time.look(start + milliseconds(30)), milliseconds(30));
    EXPECT_EQ(time.look(start + milliseconds(180)), milliseconds(180));
}

TEST(AwakeTime, LeavesOutWhatAStoppedProcessDidNotSee) {
    const AwakeTime::Clock::time_point start{};
    AwakeTime time(start);
    EXPECT_EQ(time.look(start + milliseconds(50)), milliseconds(50));
    EXPECT_EQ(time.look(start + seconds(3600)), milliseconds(250));
    EXPECT_EQ(time.look(start + seconds(7200)), milliseconds(450));
    EXPECT_EQ(time.look(start + seconds(7200) + milliseconds(20)), milliseconds(470));
}

}  // namespace
}  // namespace nearstep
