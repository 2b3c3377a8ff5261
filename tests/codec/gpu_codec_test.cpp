// Compares the GPU codecs with the CPU's scalar ones, bit for bit; skipped without a GPU.
#include "codec/gpu_codec.hpp"

#include "codec/sample_tiles.hpp"
#include "memory/gpu.hpp"
#include "support/test.hpp"

namespace nearstep::codec {
namespace {

using memory::GpuBuffer;
using shard::kTileElems;

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
    return std::as_bytes(std::span(values));
}

GpuBuffer to_gpu(std::span<const std::byte> bytes, const memory::Stream& stream) {
    GpuBuffer buffer(bytes.size());
    copy_to_gpu(buffer.span(), bytes, stream);
    stream.wait();
    return buffer;
}

template <typename T>
std::vector<T> to_host(const GpuBuffer& buffer, const memory::Stream& stream) {
    std::vector<T> values(buffer.size() / sizeof(T));
    copy_to_host(std::as_writable_bytes(std::span(values)), buffer.span(), stream);
    stream.wait();
    return values;
}

std::vector<float> joined_values(const std::vector<std::vector<float>>& tiles) {
    std::vector<float> values;
    for (const std::vector<float>& tile : tiles) {
        values.insert(values.end(), tile.begin(), tile.end());
    }
    return values;
}

// The nasty tiles, and some that a sample of the elements misrepresents.
std::vector<float> gradient() {
    std::vector<std::vector<float>> tiles = nasty_tiles();
    tiles.push_back(tile_of([](std::size_t i) { return i < 60000 ? 0.0F : noise(i); }));
    tiles.push_back(tile_of([](std::size_t i) { return i % 64 == 1 ? noise(i) : 0.0F; }));
    tiles.push_back(
        tile_of([](std::size_t i) { return 1.0F + 0x1p-23F * static_cast<float>(i % 50); }));
    tiles.push_back(tile_of([](std::size_t i) {
        return i % 331 == 0 ? std::numeric_limits<float>::quiet_NaN()
                            : (i % 127 == 0 ? -INFINITY : noise(i));
    }));
    for (std::uint64_t seed = 20; seed < 24; ++seed) {
        tiles.push_back(random_tile(seed));
    }
    return joined_values(tiles);
}

float rounded(float value, Dtype dtype) {
    if (dtype == Dtype::fp32) {
        return value;
    }
    return dtype == Dtype::bf16 ? from_bf16(to_bf16(value)) : from_fp16(to_fp16(value));
}

struct GpuCase {
    std::string name;
    double keep = 0.03;
    Dtype dtype = Dtype::bf16;
    arith::Rounding rounding = arith::Rounding::nearest;

    CodecSettings settings() const {
        return {.name = name, .keep = keep, .dtype = dtype, .rounding = rounding};
    }
};

constexpr std::uint64_t kRandomKey = 77;
constexpr std::uint64_t kFirstTile = 5;

class GpuCodecs : public testing::TestWithParam<GpuCase> {
protected:
    void SetUp() override {
        if (memory::gpus() == 0) {
            GTEST_SKIP() << "there is no GPU here";
        }
        memory::use_gpu(0);
        stream_.emplace();
        CodecSettings settings = GetParam().settings();
        const std::vector<Kernels> all = kernels();
        settings.kernels = all.data();
        cpu_ = make_codec(settings);
    }

    std::vector<std::byte> cpu_payloads(const std::vector<float>& values) const {
        const std::size_t bytes = cpu_->payload_bytes();
        std::vector<std::byte> payloads(values.size() / kTileElems * bytes);
        for (std::size_t tile = 0; tile < values.size() / kTileElems; ++tile) {
            cpu_->encode(std::span(values).subspan(tile * kTileElems, kTileElems),
                         std::span(payloads).subspan(tile * bytes, bytes),
                         arith::tile_key(kRandomKey, kFirstTile + tile));
        }
        return payloads;
    }

    // Encodes on the GPU, into poisoned memory, and compares payloads, and the squares of what they
    // decode to, with those of `values` on the host.
    void expect_same(GpuEncoding encoding, const std::vector<float>& values,
                     const std::vector<std::uint32_t>& order) {
        const std::size_t tiles = values.size() / kTileElems;
        const std::size_t bytes = cpu_->payload_bytes();
        const GpuBuffer places = to_gpu(bytes_of(order), *stream_);
        GpuBuffer payloads =
            to_gpu(std::vector<std::byte>(tiles * bytes, std::byte{0xEE}), *stream_);
        GpuBuffer squares = to_gpu(bytes_of(std::vector<double>(tiles, -1.0)), *stream_);
        encoding.tiles = tiles;
        encoding.order =
            order.empty() ? nullptr : reinterpret_cast<const std::uint32_t*>(places.span().data());
        encoding.payloads = payloads.as<std::byte>();
        encoding.random_key = kRandomKey;
        encoding.first_tile = kFirstTile;
        encode_on_gpu(*cpu_, encoding, *stream_);
        square_on_gpu(*cpu_, encoding.payloads, tiles, squares.as<double>(), *stream_);

        const std::vector<std::byte> wanted = cpu_payloads(values);
        const std::vector<std::byte> found = to_host<std::byte>(payloads, *stream_);
        for (std::size_t place = 0; place < tiles; ++place) {
            const std::size_t tile = order.empty() ? place : order[place];
            ASSERT_TRUE(std::ranges::equal(std::span(wanted).subspan(tile * bytes, bytes),
                                           std::span(found).subspan(place * bytes, bytes)))
                << "tile " << tile;
        }
        expect_same_squares(found, to_host<double>(squares, *stream_));
    }

    // The payload has the same bits, unless a value is not finite.
    void expect_same_squares(std::span<const std::byte> payloads,
                             const std::vector<double>& squares) const {
        const std::size_t bytes = cpu_->payload_bytes();
        std::vector<float> decoded(kTileElems);
        for (std::size_t place = 0; place < squares.size(); ++place) {
            std::ranges::fill(decoded, 0.0F);
            cpu_->decode_add(payloads.subspan(place * bytes, bytes), 0, decoded);
            std::array<double, kSquareSums> sums{};
            kernels().front().add_squares(decoded.data(), sums.data(), decoded.size());
            const double wanted = std::accumulate(sums.begin(), sums.end(), 0.0);
            EXPECT_EQ(std::isfinite(squares[place]), std::isfinite(wanted)) << "payload " << place;
            if (std::isfinite(wanted)) {
                EXPECT_EQ(squares[place], wanted) << "payload " << place;
            }
        }
    }

    std::optional<memory::Stream> stream_;
    std::unique_ptr<Codec> cpu_;
};

TEST_P(GpuCodecs, EncodeFp32RoundedAsOnItsWayThroughAGroup) {
    const std::vector<float> source = gradient();
    const GpuBuffer on_gpu = to_gpu(bytes_of(source), *stream_);
    for (const Dtype rounding : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
        std::vector<float> values = source;
        std::transform(values.begin(), values.end(), values.begin(),
                       [rounding](float value) { return rounded(value, rounding); });
        expect_same({.gradient = on_gpu.span().data(), .rounding = rounding}, values, {});
    }
}

TEST_P(GpuCodecs, EncodeBf16InAnyOrder) {
    const std::vector<float> source = gradient();
    std::vector<std::uint16_t> halves(source.size());
    std::transform(source.begin(), source.end(), halves.begin(), to_bf16);
    std::vector<float> values(source.size());
    std::transform(halves.begin(), halves.end(), values.begin(), from_bf16);
    const GpuBuffer on_gpu = to_gpu(bytes_of(halves), *stream_);
    const GpuEncoding encoding{.gradient = on_gpu.span().data(), .gradient_dtype = Dtype::bf16};
    expect_same(encoding, values, {});
    std::vector<std::uint32_t> order(values.size() / kTileElems);
    std::iota(order.rbegin(), order.rend(), 0U);
    std::swap(order[2], order[5]);
    expect_same(encoding, values, order);
}

constexpr auto kAtRandom = arith::Rounding::stochastic;

INSTANTIATE_TEST_SUITE_P(
    Codecs, GpuCodecs,
    testing::Values(GpuCase{.name = "dense", .dtype = Dtype::fp32}, GpuCase{.name = "dense"},
                    GpuCase{.name = "dense", .dtype = Dtype::fp16}, GpuCase{.name = "topk"},
                    GpuCase{.name = "topk", .keep = 0.01},
                    GpuCase{.name = "topk", .keep = 1.0 / 65536},
                    GpuCase{.name = "topk", .keep = 0.5}, GpuCase{.name = "topk", .keep = 1.0},
                    GpuCase{.name = "topk", .dtype = Dtype::fp16}, GpuCase{.name = "q8"},
                    GpuCase{.name = "q8", .rounding = kAtRandom}, GpuCase{.name = "q4"},
                    GpuCase{.name = "q4", .rounding = kAtRandom}),
    [](const auto& one) {
        return one.param.name + "_" + name_of(one.param.dtype) + "_" +
               std::to_string(static_cast<int>(one.param.keep * 65536)) +
               (one.param.rounding == kAtRandom ? "_stochastic" : "");
    });

// --- Sums ----------------------------------------------------------------------------------------

constexpr std::size_t kElems = 8 * 12345;

// Includes values that round or cancel, zeros of both signs and infinities.
std::vector<std::byte> addend(std::size_t number, Dtype dtype) {
    std::vector<float> wide(kElems);
    for (std::size_t i = 0; i < kElems; ++i) {
        wide[i] = static_cast<float>(random_normal(number, 9, i)) *
                  std::ldexp(1.0F, static_cast<int>(i % 13));
    }
    wide[3] = -0.0F;
    wide[4] = number % 2 == 0 ? 1.0F : -1.0F;
    wide[5] = number == 1 ? std::numeric_limits<float>::infinity() : 2.0F;
    std::vector<std::byte> out(kElems * size_bytes(dtype));
    best_kernels().narrow(wide.data(), dtype, out.data(), kElems);
    return out;
}

TEST(GpuSum, HasTheBitsOfTheHosts) {
    if (memory::gpus() == 0) {
        GTEST_SKIP() << "there is no GPU here";
    }
    memory::use_gpu(0);
    const memory::Stream stream;
    for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32}) {
        for (const std::size_t count : {1U, 2U, 3U, 8U}) {
            std::vector<GpuBuffer> buffers;
            std::vector<const std::byte*> addresses;
            std::vector<float> wanted(kElems);
            for (std::size_t number = 0; number < count; ++number) {
                const std::vector<std::byte> values = addend(number, dtype);
                addresses.push_back(buffers.emplace_back(to_gpu(values, stream)).span().data());
                const auto& take = number == 0 ? best_kernels().widen : best_kernels().add_widened;
                take(dtype, values.data(), wanted.data(), kElems);
            }
            GpuBuffer sums(kElems * sizeof(float));
            add_on_gpu(addresses, dtype, kElems, sums.as<float>(), stream);
            const std::vector<float> found = to_host<float>(sums, stream);
            EXPECT_EQ(std::memcmp(found.data(), wanted.data(), kElems * sizeof(float)), 0)
                << name_of(dtype) << ", " << count << " addends";
        }
    }
}

}  // namespace
}  // namespace nearstep::codec
