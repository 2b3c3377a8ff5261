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

TEST(SamplesTest, ComparesEachRoundWithItself) {
    EXPECT_THAT(ratios_of({1, 9}, {2, 3}), testing::ElementsAre(0.5, 3));
    EXPECT_THROW(ratios_of({1}, {1, 2}), ContractError);
}

}  // namespace
}  // namespace nearstep
