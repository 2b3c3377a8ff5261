// Tests the integer codes of blocks and their stochastic rounding.
#include "codec/codec.hpp"
#include "shard/partition.hpp"
#include "support/test.hpp"

namespace nearstep::codec {
namespace {

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
    Payload(const std::string& name, Rounding rounding, const std::vector<float>& tile,
            arith::TileKey key = {0, 0})
        : values(kTileElems, 0.0F) {
        const auto codec = make_codec({.name = name, .rounding = rounding});
        bytes.resize(codec->payload_bytes());
        codec->encode(tile, bytes, key);
        codec->decode_add(bytes, 0, values);
    }

    float scale_of(std::size_t block) const {
        std::uint16_t scale = 0;
        std::memcpy(&scale, bytes.data() + bytes.size() - 2 * (kBlocks - block), sizeof scale);
        return from_bf16(scale);
    }
    std::uint8_t byte(std::size_t at) const { return static_cast<std::uint8_t>(bytes[at]); }

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
    for (const std::string name : {"q8", "q4"}) {
        const double limit = name == "q8" ? 127 : 7;
        const Payload payload(name, Rounding::nearest, tile);
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
    const Payload q4("q4", Rounding::nearest, tile);
    EXPECT_EQ(q4.scale_of(1), 1.0F);
    EXPECT_EQ(q4.byte(32), 0x07);
    EXPECT_EQ(q4.byte(32 + 5), 0x6D);  // 6, and -3 in two's complement
    tile[64] = 127;
    const Payload q8("q8", Rounding::nearest, tile);
    EXPECT_EQ(q8.byte(64), 127);
    EXPECT_EQ(q8.byte(64 + 5), 0xFD);
    EXPECT_EQ(q8.byte(64 + 37), 6);
    EXPECT_EQ(q8.values, tile);
}

// For every |x| up to the largest, the mean of the decoded values over many keys is x.
class Stochastic : public testing::TestWithParam<std::string> {};

TEST_P(Stochastic, RoundsWithoutBias) {
    std::vector<float> tile(kTileElems);
    for (std::size_t i = 0; i < tile.size(); ++i) {
        tile[i] = static_cast<float>(2 * random_uniform(8, 0, i) - 1);
    }
    constexpr int kDraws = 200;
    std::vector<double> means(kTileElems, 0.0);
    double scale = 0;
    for (int draw = 0; draw < kDraws; ++draw) {
        const Payload payload(GetParam(), Rounding::stochastic, tile,
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
    const auto bytes_with = [&](std::uint64_t key, std::uint64_t number) {
        return Payload(GetParam(), Rounding::stochastic, tile, arith::tile_key(key, number)).bytes;
    };
    EXPECT_EQ(bytes_with(1, 1), bytes_with(1, 1));
    EXPECT_NE(bytes_with(1, 1), bytes_with(1, 2));
    EXPECT_NE(bytes_with(1, 1), bytes_with(2, 1));
}

INSTANTIATE_TEST_SUITE_P(Codecs, Stochastic, testing::Values("q8", "q4"),
                         [](const auto& one) { return one.param; });

}  // namespace
}  // namespace nearstep::codec
