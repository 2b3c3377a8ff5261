// Measures how fast gradients in GPU memory are encoded. Used by main.cpp.
#include "base/error.hpp"
#include "base/random.hpp"
#include "base/units.hpp"
#include "bench/micro/benchmarks.hpp"
#include "codec/gpu_codec.hpp"
#include "memory/gpu.hpp"
#include "shard/partition.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <vector>

namespace nearstep::bench {

namespace {

using memory::Event;
using memory::GpuBuffer;
using shard::kTileElems;

// Tiles with different content, if no file provides it, and one more that is verified.
constexpr std::size_t kKinds = 16;

std::vector<std::uint16_t> read_values(const std::string& path) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    const auto bytes = file ? static_cast<std::size_t>(file.tellg()) : 0;
    std::vector<std::uint16_t> values(bytes / 2);
    file.seekg(0);
    file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(bytes / 2 * 2));
    if (!file || values.empty()) {
        throw ConfigError(
            text("--gradient ", path, " cannot be read: name a file of 16-bit bf16 values."));
    }
    return values;
}

// `count` values, repeated as needed.
std::vector<std::uint16_t> make_values(const MicroOptions& options, std::size_t count) {
    std::vector<std::uint16_t> values;
    if (!options.gradient.empty()) {
        values = read_values(options.gradient);
    } else {
        values.resize(kKinds * kTileElems);
        for (std::size_t i = 0; i < values.size(); ++i) {
            values[i] = to_bf16(static_cast<float>(1e-3 * random_normal(1, 0, i)));
        }
    }
    const std::size_t given = values.size();
    values.resize(count);
    for (std::size_t i = given; i < count; ++i) {
        values[i] = values[i - given];
    }
    return values;
}

class GpuCodecWork {
public:
    GpuCodecWork(const MicroOptions& options, const codec::CodecSettings& settings)
        : codec_(codec::make_codec(settings)),
          tiles_(round_up(options.parameters, kTileElems) / kTileElems),
          values_(make_values(options, tiles_ * kTileElems)),
          copy_(values_.size() * sizeof(std::uint16_t)),
          payloads_(tiles_ * codec_->payload_bytes()),
          squares_(tiles_ * sizeof(double)) {
        for (GpuBuffer& input : inputs_) {
            input = GpuBuffer(copy_.size());
            copy_to_gpu(input.span(), std::as_bytes(std::span(values_)), stream);
        }
        stream.wait();
    }

    // Each works on the other input than the last one.
    void copy() { copy_on_gpu(copy_.span(), next_input().span(), stream); }
    void encode() {
        encode_on_gpu(*codec_,
                      {.tiles = tiles_,
                       .gradient = next_input().span().data(),
                       .gradient_dtype = Dtype::bf16,
                       .payloads = payloads_.as<std::byte>(),
                       .random_key = 1},
                      stream);
        square_on_gpu(*codec_, payloads_.as<std::byte>(), tiles_, squares_.as<double>(), stream);
    }

    // Compares payloads with the scalar codec's of the CPU.
    void verify() {
        encode();
        const std::size_t bytes = codec_->payload_bytes();
        std::vector<std::byte> payloads(tiles_ * bytes);
        copy_to_host(payloads, payloads_.span(), stream);
        stream.wait();
        std::vector<float> tile(kTileElems);
        std::vector<std::byte> payload(bytes);
        for (std::size_t i = 0; i < std::min(kKinds + 1, tiles_); ++i) {
            const std::size_t number = i < kKinds ? i : tiles_ - 1;
            std::ranges::transform(std::span(values_).subspan(number * kTileElems, kTileElems),
                                   tile.begin(), from_bf16);
            codec_->encode(tile, payload, arith::tile_key(1, number));
            if (!std::ranges::equal(payload, std::span(payloads).subspan(number * bytes, bytes))) {
                throw Error(text("The codec ", codec_->name(), " does not give the CPU's bits in ",
                                 "tile ", number, ": do not train on this GPU, and report it."));
            }
        }
    }

    std::size_t gradient_bytes() const { return copy_.size(); }
    double payload_bytes_per_parameter() const {
        return static_cast<double>(codec_->payload_bytes()) / kTileElems;
    }

    memory::Stream stream;

private:
    GpuBuffer& next_input() { return inputs_.at(++turn_ % inputs_.size()); }

    std::unique_ptr<codec::Codec> codec_;
    std::size_t tiles_;
    std::vector<std::uint16_t> values_;
    std::array<GpuBuffer, 2> inputs_;
    std::size_t turn_ = 0;
    GpuBuffer copy_;
    GpuBuffer payloads_;
    GpuBuffer squares_;
};

void add_pass(const std::string& name, const MicroOptions& options,
              const codec::CodecSettings& settings, void (GpuCodecWork::*pass)()) {
    benchmark::RegisterBenchmark(
        name.c_str(),
        [=](benchmark::State& state) {
            memory::use_gpu(0);
            GpuCodecWork work(options, settings);
            work.verify();
            Event begin;
            Event end;
            for (auto _ : state) {
                begin.record(work.stream);
                (work.*pass)();
                end.record(work.stream);
                work.stream.wait();
                state.SetIterationTime(end.seconds_since(begin));
            }
            state.SetBytesProcessed(state.iterations() *
                                    static_cast<std::int64_t>(work.gradient_bytes()));
            state.counters["bytes_per_parameter"] = work.payload_bytes_per_parameter();
        })
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
}

}  // namespace

void add_gpu_codecs(const MicroOptions& options) {
    if (memory::gpus() == 0) {
        return;
    }
    benchmark::AddCustomContext("gpu", memory::name_of_gpu(0));
    codec::CodecSettings settings{
        .keep = options.keep, .rounding = options.rounding, .kernels = &codec::kernels().front()};
    add_pass("gpu_codec/copy", options, settings, &GpuCodecWork::copy);
    for (const std::string& name : codec::codec_names()) {
        settings.name = name;
        if (!codec::make_codec(settings)->kernel_form()) {
            continue;  // hosts alone encode it
        }
        add_pass("gpu_codec/" + name, options, settings, &GpuCodecWork::encode);
    }
}

}  // namespace nearstep::bench
