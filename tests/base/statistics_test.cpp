// Tests medians and ratios of repeated measurements.
#include "base/statistics.hpp"

#include "support/test.hpp"

namespace nearstep {
namespace {

TEST(SamplesTest, TakesTheMiddleOfAnOddAndTheMeanOfAnEvenNumber) {
    EXPECT_EQ(summary_of({3, 1, 2}).median, 2);
    EXPECT_EQ(summary_of({4, 1, 2, 100}).median, 3);
    EXPECT_EQ(summary_of({4, 1, 2, 100}).least, 1);
    EXPECT_EQ(summary_of({4, 1, 2, 100}).most, 100);
    EXPECT_EQ(summary_of({7}).median, 7);
    EXPECT_THROW(summary_of({}), ContractError);
}

TEST(SamplesTest, TheSlowestIsAMultipleOfThoseThatTookTime) {
    const Slowest slowest = slowest_of({2, 0, 6, 3});
    EXPECT_EQ(slowest.rank, 2);
    EXPECT_EQ(slowest.times, 2);
    EXPECT_EQ(slowest_of({0, 0}).times, 1);
    EXPECT_EQ(slowest_of({}).times, 1);
}

TEST(SamplesTest, TheRankThatWaitedLeastCameLast) {
    const Slowest latest = latest_of({4, 0, 1, 3, 5});
    EXPECT_EQ(latest.rank, 2);
    EXPECT_EQ(latest.times, 4);
    EXPECT_EQ(latest_of({2, 6}).times, 3);
    EXPECT_EQ(latest_of({0, 0}).times, 1);
}

TEST(SamplesTest, ADriveIsComparedWithItsFirstSteps) {
    RateSinceStart rate;
    EXPECT_EQ(rate.times(8, 100), 1) << "the first step allocates";
    for (const double seconds : {2, 4, 3, 4}) {
        EXPECT_EQ(rate.times(8, seconds), 1);
    }
    EXPECT_EQ(rate.times(8, 4), 1);
    EXPECT_EQ(rate.times(8, 12), 3);
    EXPECT_EQ(rate.times(4, 12), 6);
    EXPECT_EQ(rate.times(0, 6), 1) << "a skipped step moves no state";
}

TEST(SamplesTest, ComparesEachRoundWithItself) {
    EXPECT_THAT(ratios_of({1, 9}, {2, 3}), testing::ElementsAre(0.5, 3));
    EXPECT_THROW(ratios_of({1}, {1, 2}), ContractError);
}

}  // namespace
}  // namespace nearstep
