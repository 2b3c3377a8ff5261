// Tests loops over threads, tickets, and the number of threads of a rank.
#include "base/executor.hpp"

#include "base/machine.hpp"
#include "support/test.hpp"

#include <atomic>
#include <latch>

namespace nearstep {
namespace {

class LoopOf : public ::testing::TestWithParam<int> {};

TEST_P(LoopOf, DoesEachPieceOnceInManyLoops) {
    Executor pool(GetParam() - 1);
    EXPECT_EQ(pool.members(), GetParam());
    for (const std::size_t count : {0U, 1U, 2U, 7U, 1000U}) {
        for (int loop = 0; loop < 50; ++loop) {
            std::vector<std::atomic<int>> times(count);
            pool.share(count, [&](std::size_t i, int) { ++times[i]; });
            EXPECT_TRUE(std::all_of(times.begin(), times.end(), [](int t) { return t == 1; }));
        }
    }
}

// The sums are not atomic, so they would be wrong if two threads had the same number.
TEST_P(LoopOf, TellsItsMembersApart) {
    Executor pool(GetParam() - 1);
    std::vector<std::size_t> sums(static_cast<std::size_t>(GetParam()) * 64);
    constexpr std::size_t kCount = 20000;
    pool.share(kCount, [&](std::size_t i, int member) {
        ASSERT_TRUE(member >= 0 && member < GetParam());
        sums[static_cast<std::size_t>(member) * 64] += i;
    });
    std::size_t sum = 0;
    for (const std::size_t part : sums) {
        sum += part;
    }
    EXPECT_EQ(sum, kCount * (kCount - 1) / 2);
}

TEST_P(LoopOf, PassesOnAnErrorAndGoesOn) {
    Executor pool(GetParam() - 1);
    EXPECT_THROW(pool.share(100,
                            [](std::size_t i, int) {
                                if (i == 40) {
                                    throw std::runtime_error("piece 40");
                                }
                            }),
                 std::runtime_error);
    std::atomic<int> done = 0;
    pool.share(100, [&](std::size_t, int) { ++done; });
    EXPECT_EQ(done, 100);
}

INSTANTIATE_TEST_SUITE_P(Threads, LoopOf, ::testing::Values(1, 2, 3, 8));

TEST(PoolThreads, AreThoseOfTheEnvironmentUpToAMost) {
    Environment environment;
    for (const auto& [text, threads] : {std::pair("3", 3), std::pair("1000", 16)}) {
        environment.set("OMP_NUM_THREADS", text);
        EXPECT_EQ(pool_threads(), threads);
    }
    for (const char* text : {"none", ""}) {
        environment.set("OMP_NUM_THREADS", text);
        EXPECT_GE(pool_threads(), 1);
    }
}

TEST(PoolThreads, AreAShareOfTheHostsCoresWhereTorchrunSetsOne) {
    Environment environment;
    environment.set("OMP_NUM_THREADS", "1");
    environment.set("LOCAL_WORLD_SIZE", "1");
    EXPECT_EQ(pool_threads(), 1);  // torchrun sets no variable for one process, so the user did
    environment.set("LOCAL_WORLD_SIZE", "2");
    EXPECT_EQ(pool_threads(), std::clamp(std::min(host_cores() / 2, usable_cores()), 1, 16));
    environment.set("LOCAL_WORLD_SIZE", "100000");
    EXPECT_EQ(pool_threads(), 1);
    environment.set("OMP_NUM_THREADS", "5");
    EXPECT_EQ(pool_threads(), 5);
}

// spawn() of torch.multiprocessing sets neither variable.
TEST(PoolThreads, AreAShareOfTheHostsCoresOnceRanksHaveFoundEachOther) {
    Environment environment;
    environment.set("OMP_NUM_THREADS", "");
    environment.set("LOCAL_WORLD_SIZE", "");
    const int alone = pool_threads();
    share_cores(100000);
    EXPECT_EQ(pool_threads(), 1);
    environment.set("LOCAL_WORLD_SIZE", "1");
    EXPECT_EQ(pool_threads(), 1);
    share_cores(1);
    environment.set("LOCAL_WORLD_SIZE", "100000");  // of several hosts
    EXPECT_EQ(pool_threads(), alone);
    share_cores(2);
    environment.set("OMP_NUM_THREADS", "1");
    EXPECT_EQ(pool_threads(), std::clamp(std::min(host_cores() / 2, usable_cores()), 1, 16));
    environment.set("LOCAL_WORLD_SIZE", "");
    EXPECT_EQ(pool_threads(), 1);  // the user has set it
    share_cores(0);
}

TEST(Executor, SharesItsThreadsBetweenLoopsAndSubmittedWork) {
    Executor executor(2);
    std::atomic<int> turns = 0;
    std::vector<std::jthread> callers;
    for (int caller = 0; caller < 3; ++caller) {
        callers.emplace_back([&] {
            for (int loop = 0; loop < 50; ++loop) {
                executor.share(20, [&](std::size_t, int) { ++turns; });
                executor.submit([&] { ++turns; }).wait();
            }
        });
    }
    callers.clear();
    EXPECT_EQ(turns, 3 * 50 * 21);
}

TEST(Executor, RunsInOrderWithOneThreadAndFinishesItsQueueAtTheEnd) {
    std::vector<int> order;
    {
        Executor executor(1);
        std::vector<Ticket> tickets;
        for (int i = 0; i < 100; ++i) {
            tickets.push_back(executor.submit([&order, i] { order.push_back(i); }));
        }
    }
    std::vector<int> expected(100);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(order, expected);
}

// The loop begins before the executor's thread is free, and its caller waits for this thread.
TEST(Executor, DoesWhatIsLastAfterOtherWorkAndLoops) {
    std::vector<std::string> order;
    std::latch has_loop(1);
    std::latch helps(2);
    Executor executor(1);
    const Ticket first = executor.submit([&] { has_loop.wait(); });
    Ticket last = executor.after(
        {}, [&] { order.emplace_back("last"); }, Executor::Place::last);
    const Ticket next = executor.submit([&] { order.emplace_back("next"); });
    executor.share(2, [&](std::size_t, int member) {
        member == 0 ? has_loop.count_down() : static_cast<void>(order.emplace_back("loop"));
        helps.arrive_and_wait();
    });
    last.wait();
    EXPECT_EQ(order, (std::vector<std::string>{"next", "loop", "last"}));
}

TEST(Executor, RunsWorkAfterATicketAndPassesOnItsError) {
    Completion good;
    Completion bad;
    bool is_run = false;
    Ticket after_good;
    Ticket after_bad;
    {
        std::jthread completes([&] {
            good.complete();
            bad.complete(std::make_exception_ptr(std::runtime_error("bad")));
        });
        Executor executor(1);
        after_good = executor.after(good.ticket(), [&] { is_run = true; });
        after_bad = executor.after(bad.ticket(), [] { FAIL(); });
    }
    EXPECT_TRUE(is_run);
    EXPECT_NO_THROW(after_good.wait());
    EXPECT_THROW(after_bad.wait(), std::runtime_error);
}

TEST(Executor, GoesOnAfterAnError) {
    Executor executor(1);
    Ticket bad = executor.submit([] { throw std::runtime_error("bad"); });
    bool is_run = false;
    executor.submit([&is_run] { is_run = true; }).wait();
    EXPECT_TRUE(is_run);
    EXPECT_THROW(bad.wait(), std::runtime_error);
    EXPECT_NO_THROW(bad.wait());
    EXPECT_NO_THROW(Ticket().wait());
}

TEST(ATicket, WaitsInItsDestructorAndWhenReplaced) {
    Executor executor(1);
    std::atomic<int> done{0};
    std::latch go(1);
    {
        const Ticket first = executor.submit([&] {
            go.wait();
            ++done;
        });
        go.count_down();
    }
    EXPECT_EQ(done, 1);
    Ticket second = executor.submit([&] { ++done; });
    second = Ticket();
    EXPECT_EQ(done, 2);
}

TEST(ATicket, StandsForSeveralOperationsAndEndsWithTheLastOne) {
    Executor executor(2);
    std::latch go(1);
    std::atomic<bool> is_done{false};
    Ticket both = executor.submit([&] {
        go.count_down();
        throw std::runtime_error("bad");
    });
    both.add(executor.submit([&] {
        go.wait();
        is_done = true;
    }));
    EXPECT_THROW(both.wait(), std::runtime_error);
    EXPECT_TRUE(is_done);
}

TEST(ATicket, IsOfTheTicketThatItsWorkReturns) {
    Completion inner;
    Executor executor(1);
    Ticket outer = executor.submit([&] { return inner.ticket(); });
    executor.submit([] {}).wait();
    EXPECT_FALSE(outer.is_complete());
    bool is_run = false;
    Ticket last = outer.then([&] { is_run = true; });
    inner.complete();
    last.wait();
    EXPECT_TRUE(is_run);
}

TEST(ATicket, TellsTheFirstErrorOnCompletion) {
    Completion first;
    Completion second;
    Ticket both = first.ticket();
    both.add(second.ticket());
    std::exception_ptr told;
    both.on_complete([&](const std::exception_ptr& error) { told = error; });
    first.complete(std::make_exception_ptr(std::runtime_error("first")));
    EXPECT_EQ(told, nullptr);
    second.complete(std::make_exception_ptr(std::logic_error("second")));
    EXPECT_THROW(std::rethrow_exception(told), std::runtime_error);
}

}  // namespace
}  // namespace nearstep
