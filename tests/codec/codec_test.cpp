// Tests the gradient codecs: dense, top-k, and sums of payloads.
#include "codec/codec.hpp"

#include "codec/sample_tiles.hpp"
#include "shard/partition.hpp"
#include "support/test.hpp"

namespace nearstep::codec {
namespace {

using arith::kPieceElems;
using shard::kTileElems;

constexpr arith::TileKey kNoKey = {0, 0};

std::vector<std::byte> encode(const Codec& codec, const std::vector<float>& tile,
                              arith::TileKey key = kNoKey) {
    std::vector<std::byte> payload(codec.payload_bytes(), std::byte{0xEE});
    codec.encode(tile, payload, key);
    return payload;
}

std::vector<float> decode(const Codec& codec, const std::vector<std::byte>& payload) {
    std::vector<float> sum(kTileElems, 0.0F);
    codec.decode_add(payload, 0, sum);
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
    const std::vector<float> tile = tile_of(GetParam().value);
    for (const Kernels& kernels : kernels()) {
        const auto codec =
            make_codec({.name = "topk", .keep = GetParam().keep, .kernels = &kernels});
        const std::vector<std::byte> payload = encode(*codec, tile);
        const std::vector<std::size_t> wanted =
            largest_by_sorting(tile, codec->kernel_form()->kept);
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
}

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
        // The sample contains none or all of the large values.
        TopkCase{"LargeAtTheEnd", 0.01, [](std::size_t i) { return i < 60000 ? 0.0F : noise(i); }},
        TopkCase{"LargeAmongZeros", 0.01,
                 [](std::size_t i) { return i % 64 == 1 ? noise(i) : 0.0F; }},
        TopkCase{"Denormals", 0.01, [](std::size_t i) { return noise(i) * 1e-39F; }},
        TopkCase{"Special", 0.01,
                 [](std::size_t i) {
                     return i % 331 == 0 ? std::numeric_limits<float>::quiet_NaN()
                                         : (i % 127 == 0 ? -INFINITY : noise(i));
                 }}),
    [](const auto& one) { return one.param.name; });

TEST(TopkSize, IsFourBytesForEachElementKept) {
    const auto payload_bytes = [](double keep) {
        return make_codec({.name = "topk", .keep = keep})->payload_bytes();
    };
    EXPECT_EQ(payload_bytes(0.01), 4 * 656U);  // 655.36 rounded up
    EXPECT_EQ(payload_bytes(1e-9), 4U);
    EXPECT_EQ(payload_bytes(1.0), 4 * kTileElems);
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
    decode_sum(*codec, spans, 0, sum);
    EXPECT_EQ(sum, wanted);
}

TEST(MakeCodec, RefusesUnknownNamesAndShares) {
    EXPECT_THROW(make_codec({.name = "zip"}), ConfigError);
    EXPECT_THROW(make_codec({.name = "topk", .keep = 0}), ConfigError);
    EXPECT_THROW(make_codec({.name = "topk", .keep = 1.5}), ConfigError);
}

struct AnyCodec {
    std::string name;
    arith::Rounding rounding;
    Dtype dtype;
    std::size_t payload_bytes;
};

class EveryCodec : public testing::TestWithParam<AnyCodec> {
protected:
    static std::unique_ptr<Codec> make(const Kernels& kernels) {
        const AnyCodec& wanted = GetParam();
        return make_codec({.name = wanted.name,
                           .keep = 0.03,
                           .dtype = wanted.dtype,
                           .rounding = wanted.rounding,
                           .kernels = &kernels});
    }
};

TEST_P(EveryCodec, GivesTheSameBitsInAllVariants) {
    const auto reference = make(kernels().front());
    ASSERT_EQ(reference->payload_bytes(), GetParam().payload_bytes);
    int number = 0;
    for (const std::vector<float>& tile : nasty_tiles()) {
        const arith::TileKey key = arith::tile_key(5, static_cast<std::uint64_t>(number));
        const std::vector<std::byte> payload = encode(*reference, tile, key);
        const std::vector<float> values = decode(*reference, payload);
        for (const Kernels& kernels : kernels()) {
            const auto codec = make(kernels);
            EXPECT_EQ(encode(*codec, tile, key), payload) << kernels.name << " tile " << number;
            EXPECT_TRUE(same_bits(decode(*codec, payload), values))
                << kernels.name << " tile " << number;
        }
        ++number;
    }
}

TEST_P(EveryCodec, DecodesPiecesAsItDecodesTheTile) {
    const auto codec = make(best_kernels());
    const std::vector<std::byte> payload = encode(*codec, random_tile(4));
    const std::vector<float> whole = decode(*codec, payload);
    std::vector<float> sum(kTileElems, 0.0F);
    for (std::size_t first = 0; first < kTileElems; first += 2 * kPieceElems) {
        codec->decode_add(payload, first, std::span(sum).subspan(first, 2 * kPieceElems));
    }
    EXPECT_EQ(sum, whole);
}

TEST_P(EveryCodec, MakesAGradientThatIsNotFiniteSeen) {
    const auto codec = make(best_kernels());
    for (const float value : {std::numeric_limits<float>::quiet_NaN(), INFINITY, -INFINITY}) {
        std::vector<float> tile = random_tile(6);
        tile[12345] = value;
        const std::vector<float> out = decode(*codec, encode(*codec, tile));
        EXPECT_FALSE(std::isfinite(out[12345]));
    }
}

TEST_P(EveryCodec, GivesFiniteValuesForFiniteOnes) {
    const auto codec = make(best_kernels());
    for (const float scale : {1e-45F, 1e-38F, 1e-20F, 1.0F, 1e4F}) {
        const std::vector<float> tile =
            tile_of([scale](std::size_t i) { return noise(i) * scale; });
        for (const float value : decode(*codec, encode(*codec, tile))) {
            ASSERT_TRUE(std::isfinite(value));
        }
    }
}

TEST_P(EveryCodec, IsMadeAgainFromItsSettings) {
    const auto codec = make(best_kernels());
    const auto again = make_codec(codec->settings());
    const std::vector<float> tile = random_tile(8);
    const arith::TileKey key = arith::tile_key(5, 1);
    EXPECT_EQ(again->name(), codec->name());
    EXPECT_EQ(encode(*again, tile, key), encode(*codec, tile, key));
}

TEST_P(EveryCodec, EncodesZerosAsZeros) {
    const auto codec = make(best_kernels());
    const std::vector<float> zeros(kTileElems, 0.0F);
    EXPECT_EQ(decode(*codec, encode(*codec, zeros)), zeros);
}

TEST(Topk, RefusesIndicesThatDoNotAscend) {
    const auto codec = make_codec({.name = "topk", .keep = 0.5});
    const std::vector<float> tile(kTileElems, 1.0F);
    std::vector<std::byte> payload(codec->payload_bytes());
    codec->encode(tile, payload);
    const std::uint16_t beyond = 0xFFFF;
    std::memcpy(payload.data() + 2, &beyond, sizeof beyond);
    std::vector<float> sum(arith::kPieceElems);
    EXPECT_THROW(codec->decode_add(payload, 0, sum), Error);
}

constexpr auto kNearest = arith::Rounding::nearest;
constexpr auto kStochastic = arith::Rounding::stochastic;

INSTANTIATE_TEST_SUITE_P(Codecs, EveryCodec,
                         testing::Values(AnyCodec{"dense", kNearest, Dtype::fp32, 262144},
                                         AnyCodec{"dense", kNearest, Dtype::bf16, 131072},
                                         AnyCodec{"dense", kNearest, Dtype::fp16, 131072},
                                         AnyCodec{"topk", kNearest, Dtype::bf16, 1967 * 4},
                                         AnyCodec{"topk", kNearest, Dtype::fp16, 1967 * 4},
                                         AnyCodec{"q8", kNearest, Dtype::bf16, 65536 + 2048},
                                         AnyCodec{"q8", kStochastic, Dtype::bf16, 65536 + 2048},
                                         AnyCodec{"q4", kNearest, Dtype::bf16, 32768 + 2048},
                                         AnyCodec{"q4", kStochastic, Dtype::bf16, 32768 + 2048}));

}  // namespace
}  // namespace nearstep::codec
