// Tests conversions between fp32, bf16 and fp16: every value, ties and special values.
#include "base/dtype.hpp"

#include "base/words.hpp"
#include "support/test.hpp"

namespace nearstep {
namespace {

TEST(Bf16, RoundsToNearestEven) {
    EXPECT_EQ(to_bf16(1.0F), 0x3F80);
    EXPECT_EQ(to_bf16(float_of(0x3F808000U)), 0x3F80);  // a tie: the even neighbour is below
    EXPECT_EQ(to_bf16(float_of(0x3F818000U)), 0x3F82);  // a tie: the even neighbour is above
    EXPECT_EQ(to_bf16(float_of(0x3F808001U)), 0x3F81);
    EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()), 0x7F80);
}

TEST(Bf16, KeepsNanAndInfinity) {
    EXPECT_TRUE(std::isnan(from_bf16(to_bf16(std::nanf("")))));
    EXPECT_TRUE(std::isnan(from_bf16(to_bf16(float_of(0x7F800001U)))));
    EXPECT_EQ(from_bf16(to_bf16(-INFINITY)), -INFINITY);
}

TEST(Bf16, EveryValueSurvivesTheRoundTrip) {
    for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
        const auto half = static_cast<std::uint16_t>(bits);
        if (!std::isnan(from_bf16(half))) {
            ASSERT_EQ(to_bf16(from_bf16(half)), half);
        }
    }
}

TEST(Fp16, EveryValueSurvivesTheRoundTrip) {
    for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
        const auto half = static_cast<std::uint16_t>(bits);
        if (std::isnan(from_fp16(half))) {
            ASSERT_TRUE(std::isnan(from_fp16(to_fp16(from_fp16(half)))));
        } else {
            ASSERT_EQ(to_fp16(from_fp16(half)), half);
        }
    }
}

// Finds the nearest fp16 value by search; ties go to even.
std::uint16_t nearest_fp16(float value) {
    std::uint16_t best = 0;
    double best_distance = INFINITY;
    for (std::uint32_t bits = 0; bits < 0x7C00U; ++bits) {
        const auto half = static_cast<std::uint16_t>(bits);
        const double distance =
            std::abs(std::abs(static_cast<double>(value)) - static_cast<double>(from_fp16(half)));
        if (distance < best_distance || (distance == best_distance && half % 2 == 0)) {
            best = half;
            best_distance = distance;
        }
    }
    return static_cast<std::uint16_t>(best | (std::signbit(value) ? 0x8000U : 0U));
}

TEST(Fp16, RoundsToTheNearestValueAlsoAmongSubnormals) {
    const std::vector<float> scales = {1e-8F, 3e-8F, 5e-7F,  5e-5F,   6.1e-5F,
                                       1e-3F, 1.0F,  300.0F, 20000.0F};
    for (std::size_t i = 0; i < 90; ++i) {
        const auto value = static_cast<float>(random_normal(7, 0, i)) * scales[i % scales.size()];
        if (std::abs(value) < 65504.0F) {
            EXPECT_EQ(to_fp16(value), nearest_fp16(value)) << value;
        }
    }
    EXPECT_EQ(to_fp16(0x1p-25F), 0);  // half the smallest subnormal: a tie to even
    EXPECT_EQ(to_fp16(0x1.8p-24F), 2);
}

TEST(Fp16, OverflowsToInfinityFrom65520On) {
    EXPECT_EQ(from_fp16(to_fp16(65519.0F)), 65504.0F);
    EXPECT_EQ(from_fp16(to_fp16(65520.0F)), INFINITY);
    EXPECT_EQ(from_fp16(to_fp16(-1e30F)), -INFINITY);
}

TEST(Convert, RoundTripsArraysOfOddLength) {
    std::vector<float> values(1023);
    for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = from_bf16(to_bf16(static_cast<float>(random_normal(1, 2, i))));
    }
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
        std::vector<unsigned char> bytes(values.size() * size_bytes(dtype));
        std::vector<float> back(values.size());
        convert_from_fp32(values.data(), dtype, bytes.data(), values.size());
        convert_to_fp32(dtype, bytes.data(), back.data(), back.size());
        EXPECT_EQ(back, values) << name_of(dtype);
    }
}

}  // namespace
}  // namespace nearstep
