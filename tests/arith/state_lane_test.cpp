// Tests the stochastic rounding of masters in storage: bias, special values, fixed numbers.
#include "arith/state_lane.hpp"

#include "support/test.hpp"

namespace nearstep::arith {
namespace {

// Expects the mean of `rounded(index)` over many indices within five standard errors of `value`.
template <typename Rounded>
void expect_unbiased(float value, float lower, float upper, const Rounded& rounded) {
    constexpr std::uint32_t kDraws = 1U << 20U;
    const double up = (static_cast<double>(value) - lower) / (static_cast<double>(upper) - lower);
    double ups = 0;
    for (std::uint32_t i = 0; i < kDraws; ++i) {
        const float seen = from_bf16(rounded(i));
        ASSERT_TRUE(seen == lower || seen == upper) << seen;
        ups += seen == upper ? 1 : 0;
    }
    const double sigma = std::sqrt(up * (1 - up) / kDraws);
    EXPECT_NEAR(ups / kDraws, up, 5 * sigma) << value;
}

TEST(StochasticRounding, IsUnbiasedInBothHalvesOverElementsAndOverTiles) {
    for (const double share : {0.001, 0.1, 0.5, 0.77, 0.9999}) {
        const float lower = 1.5F;
        const float upper = 1.5F + 0x1p-7F;
        const auto value = static_cast<float>(lower + share * (upper - lower));
        const TileKey key = tile_key(3, 9);
        expect_unbiased(value, lower, upper, [&](std::uint32_t i) {
            return round_to_bf16(value, rounding_bits(key, i) & 0xFFFFU);
        });
        expect_unbiased(-value, -lower, -upper, [&](std::uint32_t i) {
            return round_to_bf16(-value, rounding_bits(key, i) >> 16U);
        });
        expect_unbiased(value, lower, upper, [&](std::uint32_t i) {
            return round_to_bf16(value, rounding_bits(tile_key(3, i), 77) >> 16U);
        });
        expect_unbiased(value, lower, upper, [&](std::uint32_t i) {
            return round_to_bf16(value, rounding_bits(tile_key(i, 5), 77) & 0xFFFFU);
        });
    }
}

TEST(StochasticRounding, LeavesValuesOfBf16AndSpecialOnesAlone) {
    for (std::uint32_t half = 0; half < 65536; ++half) {
        const float value = from_bf16(static_cast<std::uint16_t>(half));
        for (const std::uint32_t random : {0U, 1U, 32768U, 65535U}) {
            const std::uint16_t seen = round_to_bf16(value, random);
            if (std::isnan(value)) {
                ASSERT_TRUE(std::isnan(from_bf16(seen)));
            } else {
                ASSERT_EQ(seen, half);
            }
        }
    }
}

TEST(StochasticRounding, DrawsTheSameNumbersForEver) {
    // Values from another implementation. They must never change: resumed runs depend on them.
    const TileKey key = tile_key(0x0123456789ABCDEFU, 42);
    EXPECT_EQ(key.first, 0x5EAE9AD0U);
    EXPECT_EQ(key.second, 0xC4915E2DU);
    EXPECT_EQ(rounding_bits(key, 0), 0x9D9811A4U);
    EXPECT_EQ(rounding_bits(key, 65535), 0x64449429U);
}

}  // namespace
}  // namespace nearstep::arith
