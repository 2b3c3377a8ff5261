#include "codec/block.hpp"

#include "base/random.hpp"
#include "shard/partition.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace nearstep::codec {
namespace {

using arith::BlockFormat;
using arith::kScaleElems;
using arith::Rounding;
using shard::kTileElems;

constexpr std::size_t kBlocks = kTileElems / kScaleElems;

std::vector<float> random_values(double spread) {
    std::vector<float> tile(kTileElems);
    for (std::size_t i = 0; i < tile.size(); ++i) {
        tile[i] = static_cast<float>(random_normal(2, 0, i) *
                                     std::exp(spread * random_normal(2, 1, i / kScaleElems)));
    }
    return tile;
}

struct Payload {
    Payload(BlockCoding coding, const std::vector<float>& tile, arith::TileKey key = {0, 0})
        : codec(coding, best_kernels()), bytes(codec.payload_bytes()), values(kTileElems, 0.0F) {
        codec.encode(tile, bytes, key);
        codec.decode_add(bytes, 0, values);
    }

    float scale_of(std::size_t block) const {
        std::uint16_t scale = 0;
        std::memcpy(&scale, bytes.data() + bytes.size() - 2 * (kBlocks - block), sizeof scale);
        return from_bf16(scale);
    }
    std::uint8_t byte(std::size_t at) const { return static_cast<std::uint8_t>(bytes[at]); }

    BlockCodec codec;
    std::vector<std::byte> bytes;
    std::vector<float> values;
};

double largest_in(const std::vector<float>& tile, std::size_t block) {
    double largest = 0;
    for (std::size_t i = block * kScaleElems; i < (block + 1) * kScaleElems; ++i) {
        largest = std::max(largest, std::abs(static_cast<double>(tile[i])));
    }
    return largest;
}

TEST(IntegerCodes, AreWithinHalfAScaleThatIsHardlyAboveTheLargestOverTheLimit) {
    const std::vector<float> tile = random_values(3);
    for (const BlockFormat format : {BlockFormat::q8, BlockFormat::q4}) {
        const double limit = arith::largest_code(format);
        const Payload payload({format, Rounding::nearest}, tile);
        for (std::size_t block = 0; block < kBlocks; ++block) {
            const double scale = payload.scale_of(block);
            const double wanted = largest_in(tile, block) / limit;
            ASSERT_GE(scale, wanted * (1 - 1e-6));
            ASSERT_LE(scale, wanted * (1 + 1.0 / 127));
            for (std::size_t i = block * kScaleElems; i < (block + 1) * kScaleElems; ++i) {
                ASSERT_LE(std::abs(static_cast<double>(payload.values[i]) - tile[i]),
                          scale * (0.5 + 1e-4))
                    << "element " << i;
            }
        }
    }
}

TEST(IntegerCodes, LieWhereTheFormatSays) {
    std::vector<float> tile(kTileElems, 0.0F);
    tile[64] = 7;
    tile[64 + 5] = -3;
    tile[64 + 32 + 5] = 6;
    const Payload q4({BlockFormat::q4, Rounding::nearest}, tile);
    EXPECT_EQ(q4.scale_of(1), 1.0F);
    EXPECT_EQ(q4.byte(32), 0x07);
    EXPECT_EQ(q4.byte(32 + 5), 0x6D);  // 6, and -3 in two's complement
    tile[64] = 127;
    const Payload q8({BlockFormat::q8, Rounding::nearest}, tile);
    EXPECT_EQ(q8.byte(64), 127);
    EXPECT_EQ(q8.byte(64 + 5), 0xFD);
    EXPECT_EQ(q8.byte(64 + 37), 6);
    EXPECT_EQ(q8.values, tile);
}

TEST(Ternary, FollowsTheRuleOfTernaryWeightNetworks) {
    const std::vector<float> tile = random_values(2);
    const Payload payload({BlockFormat::ternary, Rounding::nearest}, tile);
    for (std::size_t block = 0; block < kBlocks; ++block) {
        double sum = 0;
        for (std::size_t i = 0; i < kScaleElems; ++i) {
            sum += std::abs(tile[block * kScaleElems + i]);
        }
        const double threshold = 0.7 * sum / kScaleElems;
        double above = 0;
        int count = 0;
        for (std::size_t i = 0; i < kScaleElems; ++i) {
            const double magnitude = std::abs(tile[block * kScaleElems + i]);
            above += magnitude > threshold ? magnitude : 0;
            count += magnitude > threshold ? 1 : 0;
        }
        ASSERT_NEAR(payload.scale_of(block), above / count, above / count / 250);
        for (std::size_t i = block * kScaleElems; i < (block + 1) * kScaleElems; ++i) {
            if (std::abs(std::abs(tile[i]) - threshold) < 1e-5 * threshold) {
                continue;  // decided by rounding
            }
            const float code = std::abs(tile[i]) > threshold ? std::copysign(1.0F, tile[i]) : 0.0F;
            ASSERT_EQ(payload.values[i], code * payload.scale_of(block)) << "element " << i;
        }
    }
}

TEST(Ternary, PacksFiveNeighbouringBlocksIntoABytesDigits) {
    std::vector<float> tile(kTileElems, 0.0F);
    tile[0 * 64 + 3] = 1;   // digit 2
    tile[1 * 64 + 3] = -1;  // digit 0
    tile[4 * 64 + 3] = 1;
    const Payload payload({BlockFormat::ternary, Rounding::nearest}, tile);
    EXPECT_EQ(payload.byte(3), 2 + 3 * 0 + 9 * 1 + 27 * 1 + 81 * 2);
    EXPECT_EQ(payload.byte(4), 1 + 3 + 9 + 27 + 81);
    EXPECT_EQ(payload.values, tile);
}

TEST(Sign, KeepsSignsAndTheMeanMagnitude) {
    const std::vector<float> tile = random_values(2);
    const Payload payload({BlockFormat::sign, Rounding::nearest}, tile);
    for (std::size_t block = 0; block < kBlocks; ++block) {
        double sum = 0;
        for (std::size_t i = 0; i < kScaleElems; ++i) {
            sum += std::abs(tile[block * kScaleElems + i]);
        }
        ASSERT_NEAR(payload.scale_of(block), sum / kScaleElems, sum / kScaleElems / 250);
        for (std::size_t i = block * kScaleElems; i < (block + 1) * kScaleElems; ++i) {
            ASSERT_EQ(payload.values[i], std::copysign(payload.scale_of(block), tile[i]));
            const bool is_negative = ((payload.byte(i / 8) >> (i % 8)) & 1) != 0;
            ASSERT_EQ(is_negative, std::signbit(tile[i]));
        }
    }
}

// For every |x| up to the largest, the mean of the decoded values over many keys is x.
class Stochastic : public testing::TestWithParam<BlockFormat> {};

TEST_P(Stochastic, RoundsWithoutBias) {
    std::vector<float> tile(kTileElems);
    for (std::size_t i = 0; i < tile.size(); ++i) {
        tile[i] = static_cast<float>(2 * random_uniform(8, 0, i) - 1);
    }
    constexpr int kDraws = 200;
    std::vector<double> means(kTileElems, 0.0);
    double scale = 0;
    for (int draw = 0; draw < kDraws; ++draw) {
        const Payload payload({GetParam(), Rounding::stochastic}, tile,
                              arith::tile_key(7, static_cast<std::uint64_t>(draw)));
        scale = payload.scale_of(0);
        for (std::size_t i = 0; i < tile.size(); ++i) {
            means[i] += static_cast<double>(payload.values[i]) / kDraws;
        }
    }
    // A draw deviates by at most one step (the distance of two codes), and by at most half a step
    // in root mean square. So the mean of an element deviates by about 1 / (2 sqrt(200)) steps.
    const double step = GetParam() == BlockFormat::sign ? 2 * scale : scale;
    const double deviation = step / 2 / std::sqrt(kDraws);
    double bias = 0;
    for (std::size_t i = 0; i < tile.size(); ++i) {
        ASSERT_NEAR(means[i], tile[i], 7 * deviation) << "element " << i;
        bias += (means[i] - tile[i]) / kTileElems;
    }
    EXPECT_NEAR(bias, 0, 5 * deviation / std::sqrt(kTileElems));
}

TEST_P(Stochastic, DependsOnTheKeyAloneAndRepeats) {
    const std::vector<float> tile = random_values(0);
    const BlockCoding coding{GetParam(), Rounding::stochastic};
    const Payload first(coding, tile, arith::tile_key(1, 1));
    EXPECT_EQ(first.bytes, Payload(coding, tile, arith::tile_key(1, 1)).bytes);
    EXPECT_NE(first.bytes, Payload(coding, tile, arith::tile_key(1, 2)).bytes);
    EXPECT_NE(first.bytes, Payload(coding, tile, arith::tile_key(2, 1)).bytes);
}

INSTANTIATE_TEST_SUITE_P(Formats, Stochastic,
                         testing::Values(BlockFormat::q8, BlockFormat::q4, BlockFormat::ternary,
                                         BlockFormat::sign),
                         [](const auto& one) { return std::string(name_of(one.param)); });

TEST(TernaryDigits, AreThoseOfEveryByte) {
    for (std::uint32_t v = 0; v < 243; ++v) {
        EXPECT_EQ(arith::third_of(v), v / 3);
        EXPECT_EQ(arith::ninth_of(v), v / 9);
        EXPECT_EQ(arith::part_27_of(v), v / 27);
        EXPECT_EQ(arith::part_81_of(v), v / 81);
    }
}

}  // namespace
}  // namespace nearstep::codec
