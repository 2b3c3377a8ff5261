#include "base/thread_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace nearstep {
namespace {

class TeamOf : public ::testing::TestWithParam<int> {};

TEST_P(TeamOf, DoesEachPieceOnceInManyLoops) {
    ThreadPool pool(GetParam());
    EXPECT_EQ(pool.threads(), GetParam());
    for (const std::size_t count : {0U, 1U, 2U, 7U, 1000U}) {
        for (int loop = 0; loop < 50; ++loop) {
            std::vector<std::atomic<int>> times(count);
            pool.share(count, [&](std::size_t i, int) { ++times[i]; });
            EXPECT_TRUE(std::all_of(times.begin(), times.end(), [](int t) { return t == 1; }));
        }
    }
}

// The sums are not atomic, so they would be wrong if two threads had the same number.
TEST_P(TeamOf, TellsItsMembersApart) {
    ThreadPool pool(GetParam());
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

TEST_P(TeamOf, PassesOnAnErrorAndGoesOn) {
    ThreadPool pool(GetParam());
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

INSTANTIATE_TEST_SUITE_P(Threads, TeamOf, ::testing::Values(1, 2, 3, 8));

TEST(TeamThreads, AreThoseOfTheEnvironmentUpToAMost) {
    const char* before = std::getenv("OMP_NUM_THREADS");
    const std::string kept = before != nullptr ? before : "";
    ::setenv("OMP_NUM_THREADS", "3", 1);
    EXPECT_EQ(pool_threads(), 3);
    ::setenv("OMP_NUM_THREADS", "1000", 1);
    EXPECT_EQ(pool_threads(), 16);
    ::setenv("OMP_NUM_THREADS", "none", 1);
    EXPECT_GE(pool_threads(), 1);
    ::unsetenv("OMP_NUM_THREADS");
    EXPECT_GE(pool_threads(), 1);
    if (before != nullptr) {
        ::setenv("OMP_NUM_THREADS", kept.c_str(), 1);
    }
}

}  // namespace
}  // namespace nearstep
