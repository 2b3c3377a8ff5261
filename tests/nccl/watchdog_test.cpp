// Tests the watchdog that ends a program whose collective hangs, without NCCL.
#include "mpi/nccl/watchdog.hpp"

#include "support/test.hpp"

#include <atomic>
#include <future>

namespace nearstep::nccl {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(RunTime, CountsFromTheLookThatFirstSawItRun) {
    RunTime time;
    const Clock::time_point start{};
    EXPECT_FALSE(time.is_overdue(Progress::queued, start, seconds(10)));
    EXPECT_FALSE(time.is_overdue(Progress::queued, start + seconds(1000), seconds(10)));
    EXPECT_FALSE(time.is_overdue(Progress::running, start + seconds(1000), seconds(10)));
    EXPECT_FALSE(time.is_overdue(Progress::running, start + seconds(1010), seconds(10)));
    EXPECT_TRUE(time.is_overdue(Progress::running, start + milliseconds(1010001), seconds(10)));
    EXPECT_FALSE(time.is_overdue(Progress::over, start + seconds(2000), seconds(10)));
}

TEST(RunTime, BeginsAnewWithTheNextOperation) {
    RunTime time;
    const Clock::time_point start{};
    EXPECT_FALSE(time.is_overdue(Progress::running, start, seconds(1)));
    EXPECT_FALSE(time.is_overdue(Progress::over, start + seconds(5), seconds(1)));
    EXPECT_FALSE(time.is_overdue(Progress::running, start + seconds(5), seconds(1)));
    EXPECT_TRUE(time.is_overdue(Progress::running, start + seconds(7), seconds(1)));
}

// A watchdog that reports to the test instead of ending the program. Aborts may outlive a test.
class Dog : public testing::Test {
protected:
    using Flag = std::shared_ptr<std::atomic<int>>;

    std::unique_ptr<Watchdog> make(milliseconds abort_limit = milliseconds(2000)) {
        return std::make_unique<Watchdog>(WatchdogSettings{
            .period = milliseconds(1),
            .abort_limit = abort_limit,
            .end = [this](const std::string& problem) { end_.set_value(problem); }});
    }

    static Flag flag() { return std::make_shared<std::atomic<int>>(0); }

    // A watched thing that fails once `is_wrong` is not 0.
    static Watched thing(const Flag& is_wrong, const Flag& aborts, const char* problem = "broken") {
        return {.look = [=](Clock::time_point) -> std::optional<std::string> {
                    return *is_wrong != 0 ? std::optional<std::string>(problem) : std::nullopt;
                },
                .abort = [=] { ++*aborts; }};
    }

    std::promise<std::string> end_;
};

TEST_F(Dog, AbortsEverythingBeforeItEndsTheProgramWithTheReason) {
    const Flag fine = flag();
    const Flag wrong = flag();
    const Flag aborts = flag();
    const auto dog = make();
    dog->watch(thing(fine, aborts));
    dog->watch(thing(wrong, aborts, "rank 3 stopped"));
    EXPECT_EQ(end_.get_future().wait_for(milliseconds(50)), std::future_status::timeout);
    end_ = {};
    auto ended = end_.get_future();
    *wrong = 1;
    EXPECT_EQ(ended.get(), "rank 3 stopped");
    EXPECT_EQ(*aborts, 2);
}

TEST_F(Dog, DoesNotWaitForAnAbortThatHangs) {
    const Flag wrong = flag();
    const Flag aborts = flag();
    const auto hangs = std::make_shared<std::promise<void>>();
    const auto dog = make(milliseconds(20));
    dog->watch({.look = [](Clock::time_point) { return std::nullopt; },
                .abort = [hangs] { hangs->get_future().wait(); }});
    dog->watch(thing(wrong, aborts));
    auto ended = end_.get_future();
    *wrong = 1;
    EXPECT_EQ(ended.get(), "broken");
    hangs->set_value();
}

TEST_F(Dog, ForgetsWhatIsClosed) {
    const Flag wrong = flag();
    const Flag aborts = flag();
    auto ended = end_.get_future();
    {
        const auto dog = make();
        dog->forget(dog->watch(thing(wrong, aborts)));
        *wrong = 1;
        EXPECT_EQ(ended.wait_for(milliseconds(50)), std::future_status::timeout);
    }
    EXPECT_EQ(*aborts, 0);
}

TEST_F(Dog, ThrowsTheFirstProblemAtWhoeverGivesUpAndAbortsOnce) {
    const Flag fine = flag();
    const Flag aborts = flag();
    const auto dog = make();
    dog->watch(thing(fine, aborts));
    for (const char* problem : {"the cause", "its consequence"}) {
        EXPECT_EQ(message_of<NcclError>([&] { dog->give_up(problem); }), "the cause");
    }
    EXPECT_EQ(*aborts, 1);
}

using WatchdogDeathTest = testing::Test;

TEST(WatchdogDeathTest, EndsTheProgramByAnExceptionInItsThread) {
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    EXPECT_DEATH(
        {
            Watchdog dog({.period = milliseconds(1)});
            dog.watch(
                {.look = [](Clock::time_point) { return std::optional<std::string>("stuck"); },
                 .abort = [] {}});
            std::promise<void>().get_future().wait();
        },
        "stuck");
}

}  // namespace
}  // namespace nearstep::nccl
