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
    // A draw deviates by at most one scale, and by at most half of it in root mean square. So the
    // mean of an element deviates by about 1 / (2 sqrt(200)) scales.
    const double deviation = scale / 2 / std::sqrt(kDraws);
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

INSTANTIATE_TEST_SUITE_P(Formats, Stochastic, testing::Values(BlockFormat::q8, BlockFormat::q4),
                         [](const auto& one) { return std::string(name_of(one.param)); });

}  // namespace
}  // namespace nearstep::codec
