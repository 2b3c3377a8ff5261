// Tests that random numbers depend on seed, stream and index alone, and their distributions.
#include "base/random.hpp"

#include "support/test.hpp"

namespace nearstep {
namespace {

TEST(Random, DependsOnSeedStreamAndIndex) {
    std::set<std::uint64_t> seen;
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
        for (std::uint64_t stream = 0; stream < 10; ++stream) {
            for (std::uint64_t index = 0; index < 10; ++index) {
                seen.insert(random_bits(seed, stream, index));
            }
        }
    }
    EXPECT_EQ(seen.size(), 1000U);
    EXPECT_EQ(random_bits(1, 2, 3), random_bits(1, 2, 3));
}

TEST(Random, NormalHasMeanZeroAndDeviationOne) {
    constexpr int kCount = 100000;
    double sum = 0;
    double squares = 0;
    for (std::uint64_t i = 0; i < kCount; ++i) {
        const double value = random_normal(3, 4, i);
        sum += value;
        squares += value * value;
    }
    EXPECT_NEAR(sum / kCount, 0, 0.02);
    EXPECT_NEAR(std::sqrt(squares / kCount), 1, 0.02);
}

TEST(Random, UniformStaysBelowOne) {
    for (std::uint64_t i = 0; i < 10000; ++i) {
        const double value = random_uniform(5, 6, i);
        ASSERT_GE(value, 0.0);
        ASSERT_LT(value, 1.0);
    }
}

}  // namespace
}  // namespace nearstep
