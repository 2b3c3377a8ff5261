#include "codec/codec.hpp"

#include "base/error.hpp"
#include "base/random.hpp"
#include "codec/topk.hpp"
#include "shard/partition.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

namespace nearstep::codec {
namespace {

using shard::kTileElems;

std::vector<float> random_tile(std::uint64_t seed) {
    std::vector<float> tile(kTileElems);
    for (std::size_t i = 0; i < tile.size(); ++i) {
        tile[i] = static_cast<float>(random_normal(seed, 0, i));
    }
    return tile;
}

std::vector<std::byte> encode(const Codec& codec, const std::vector<float>& tile) {
    std::vector<std::byte> payload(codec.payload_bytes(), std::byte{0xEE});
    codec.encode(tile, payload);
    return payload;
}

std::vector<float> decode(const Codec& codec, const std::vector<std::byte>& payload) {
    std::vector<float> sum(kTileElems, 0.0F);
    codec.decode_add(payload, sum);
    return sum;
}

TEST(DenseCodec, RoundsEachValueToItsFormat) {
    const std::vector<float> tile = random_tile(1);
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
        const auto codec = make_codec({.name = "dense", .dtype = dtype});
        EXPECT_EQ(codec->payload_bytes(), kTileElems * size_bytes(dtype));
        const std::vector<float> out = decode(*codec, encode(*codec, tile));
        for (std::size_t i = 0; i < tile.size(); ++i) {
            float wanted = tile[i];
            if (dtype == Dtype::bf16) {
                wanted = from_bf16(to_bf16(wanted));
            } else if (dtype == Dtype::fp16) {
                wanted = from_fp16(to_fp16(wanted));
            }
            ASSERT_EQ(out[i], wanted);
        }
    }
}

// Indices that top-k keeps, by sorting: larger magnitude first, then lower index; NaN is largest.
std::vector<std::size_t> largest_by_sorting(const std::vector<float>& tile, std::size_t kept) {
    std::vector<std::size_t> order(tile.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return (bits_of(tile[a]) & 0x7FFFFFFFU) > (bits_of(tile[b]) & 0x7FFFFFFFU);
    });
    order.resize(kept);
    std::sort(order.begin(), order.end());
    return order;
}

struct TopkCase {
    const char* name;
    double keep;
    std::function<float(std::size_t)> value;
};

class Topk : public testing::TestWithParam<TopkCase> {};

TEST_P(Topk, KeepsExactlyTheLargestMagnitudesTiesToTheLowerIndex) {
    std::vector<float> tile(kTileElems);
    for (std::size_t i = 0; i < tile.size(); ++i) {
        tile[i] = GetParam().value(i);
    }
    const TopkCodec codec(GetParam().keep, Dtype::bf16);
    const std::vector<std::byte> payload = encode(codec, tile);
    const std::vector<std::size_t> wanted = largest_by_sorting(tile, codec.kept());
    ASSERT_EQ(payload.size(), 4 * wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        std::uint16_t index = 0;
        std::uint16_t value = 0;
        std::memcpy(&index, payload.data() + 2 * i, 2);
        std::memcpy(&value, payload.data() + 2 * (wanted.size() + i), 2);
        ASSERT_EQ(index, wanted[i]);
        ASSERT_EQ(value, to_bf16(tile[wanted[i]]));
    }
}

float noise(std::size_t i) { return static_cast<float>(random_normal(9, 1, i)); }

INSTANTIATE_TEST_SUITE_P(
    Tiles, Topk,
    testing::Values(
        TopkCase{"Random", 0.01, noise}, TopkCase{"HalfOfRandom", 0.5, noise},
        TopkCase{"AllOfRandom", 1.0, noise}, TopkCase{"One", 1.0 / 65536, noise},
        TopkCase{"Constant", 0.02, [](std::size_t) { return -2.5F; }},
        TopkCase{"Zero", 0.01, [](std::size_t) { return 0.0F; }},
        TopkCase{"Ties", 0.01, [](std::size_t i) { return static_cast<float>(i % 7) - 3.0F; }},
        TopkCase{"NearTies", 0.01,
                 [](std::size_t i) { return 1.0F + 0x1p-23F * static_cast<float>(i % 50); }},
        TopkCase{"Denormals", 0.01, [](std::size_t i) { return noise(i) * 1e-39F; }},
        TopkCase{"Special", 0.01,
                 [](std::size_t i) {
                     return i % 331 == 0 ? std::numeric_limits<float>::quiet_NaN()
                                         : (i % 127 == 0 ? -INFINITY : noise(i));
                 }}),
    [](const auto& one) { return one.param.name; });

TEST(TopkSize, IsFourBytesForEachElementKept) {
    EXPECT_EQ(TopkCodec(0.01, Dtype::bf16).kept(), 656U);  // 655.36 rounded up
    EXPECT_EQ(TopkCodec(0.01, Dtype::bf16).payload_bytes(), 2624U);
    EXPECT_EQ(TopkCodec(1e-9, Dtype::bf16).kept(), 1U);
    EXPECT_EQ(TopkCodec(1.0, Dtype::fp16).kept(), kTileElems);
}

TEST(DecodeSum, AddsThePayloadsInOrder) {
    const auto codec = make_codec({.name = "dense", .dtype = Dtype::fp32});
    std::vector<std::vector<std::byte>> payloads;
    std::vector<float> wanted(kTileElems, 0.0F);
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
        const std::vector<float> tile = random_tile(seed);
        payloads.push_back(encode(*codec, tile));
        for (std::size_t i = 0; i < tile.size(); ++i) {
            wanted[i] += tile[i];
        }
    }
    const std::vector<std::span<const std::byte>> spans(payloads.begin(), payloads.end());
    std::vector<float> sum(kTileElems, 99.0F);
    decode_sum(*codec, spans, sum);
    EXPECT_EQ(sum, wanted);
}

TEST(MakeCodec, RefusesUnknownNamesAndShares) {
    EXPECT_THROW(make_codec({.name = "zip"}), ConfigError);
    EXPECT_THROW(make_codec({.name = "topk", .keep = 0}), ConfigError);
    EXPECT_THROW(make_codec({.name = "topk", .keep = 1.5}), ConfigError);
}

}  // namespace
}  // namespace nearstep::codec
