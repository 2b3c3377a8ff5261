// Measures how fast gradient codecs encode and decode in memory. Used by main.cpp.
#include "codec/codec.hpp"

#include "base/error.hpp"
#include "base/random.hpp"
#include "base/units.hpp"
#include "bench/micro/benchmarks.hpp"
#include "memory/buffer.hpp"
#include "shard/partition.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>

namespace nearstep::bench {

namespace {

using codec::Codec;
using shard::kTileElems;

// Tiles with different content, which the gradient repeats.
constexpr std::size_t kKindsOfTiles = 16;

class CodecWork {
public:
    CodecWork(const MicroOptions& options, const Codec& codec)
        : codec_(codec),
          tiles_(round_up(options.parameters, kTileElems) / kTileElems),
          gradients_(tiles_ * kTileElems * sizeof(float)),
          sums_(gradients_.size()),
          payloads_(tiles_ * codec.payload_bytes()) {
        for (std::size_t tile = 0; tile < tiles_; ++tile) {
            if (tile >= kKindsOfTiles) {
                std::ranges::copy(gradient(tile - kKindsOfTiles), gradient(tile).begin());
                continue;
            }
            for (std::size_t i = 0; i < kTileElems; ++i) {
                gradient(tile)[i] = static_cast<float>(1e-3 * random_normal(1, tile, i));
            }
        }
    }

    void copy() { std::memcpy(sums_.span().data(), gradients_.span().data(), gradients_.size()); }
    void encode() {
        for (std::size_t tile = 0; tile < tiles_; ++tile) {
            codec_.encode(gradient(tile), payload(tile), arith::tile_key(1, tile));
        }
    }
    void decode() {
        for (std::size_t tile = 0; tile < tiles_; ++tile) {
            codec_.decode_add(payload(tile), 0, sum(tile));
        }
    }

    // Compares payloads and sums with those of the scalar variant.
    void verify(const Codec& scalar) {
        copy();
        encode();
        decode();
        std::vector<std::byte> expected(scalar.payload_bytes());
        std::vector<float> added(kTileElems);
        for (std::size_t tile = 0; tile < std::min(tiles_, kKindsOfTiles + 1); ++tile) {
            scalar.encode(gradient(tile), expected, arith::tile_key(1, tile));
            std::ranges::copy(gradient(tile), added.begin());
            scalar.decode_add(expected, 0, added);
            if (!std::ranges::equal(expected, payload(tile)) ||
                !std::ranges::equal(added, sum(tile))) {
                throw Error(text("The codec ", codec_.name(), " does not give the bits of its ",
                                 "scalar variant in tile ", tile,
                                 ": do not train on this CPU, and report it."));
            }
        }
    }

    std::size_t bytes() const { return gradients_.size(); }

private:
    std::span<float> gradient(std::size_t tile) {
        return gradients_.as<float>().subspan(tile * kTileElems, kTileElems);
    }
    std::span<float> sum(std::size_t tile) {
        return sums_.as<float>().subspan(tile * kTileElems, kTileElems);
    }
    std::span<std::byte> payload(std::size_t tile) {
        return payloads_.span().subspan(tile * codec_.payload_bytes(), codec_.payload_bytes());
    }

    const Codec& codec_;
    std::size_t tiles_;
    memory::Buffer gradients_;
    memory::Buffer sums_;
    memory::Buffer payloads_;
};

void add_pass(const std::string& name, const MicroOptions& options,
              const codec::CodecSettings& settings, void (CodecWork::*pass)()) {
    benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
        codec::CodecSettings scalar = settings;
        scalar.kernels = &codec::kernels().front();
        const auto codec = codec::make_codec(settings);
        CodecWork work(options, *codec);
        work.verify(*codec::make_codec(scalar));
        for (auto _ : state) {
            (work.*pass)();
        }
        state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(work.bytes()));
        state.counters["bytes_per_parameter"] =
            static_cast<double>(codec->payload_bytes()) / kTileElems;
    })->Unit(benchmark::kMillisecond);
}

}  // namespace

void add_codecs(const MicroOptions& options) {
    codec::CodecSettings settings{.keep = options.keep, .rounding = options.rounding};
    add_pass("codec/copy", options, settings, &CodecWork::copy);
    for (const std::string& name : codec::codec_names()) {
        settings.name = name;
        for (const codec::Kernels& kernels : variants_of(options, codec::kernels())) {
            settings.kernels = &kernels;
            const std::string row = text("codec/", name, "/", kernels.name);
            add_pass(row + "/encode", options, settings, &CodecWork::encode);
            add_pass(row + "/decode", options, settings, &CodecWork::decode);
        }
    }
}

}  // namespace nearstep::bench
