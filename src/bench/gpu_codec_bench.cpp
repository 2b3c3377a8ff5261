#include "bench/gpu_codec_bench.hpp"

#include "base/error.hpp"
#include "base/random.hpp"
#include "base/statistics.hpp"
#include "base/units.hpp"
#include "base/version.hpp"
#include "bench/first_gpu.hpp"
#include "codec/gpu_codec.hpp"
#include "memory/gpu.hpp"
#include "shard/partition.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <optional>

namespace nearstep::bench {

namespace {

using codec::GpuCodec;
using memory::Event;
using memory::GpuBuffer;
using shard::kTileElems;

constexpr std::size_t kInputs = 2;
// Tiles with different content, if no file provides it.
constexpr std::size_t kKinds = 16;
// Tiles that are compared with the CPU's result.
constexpr std::size_t kVerified = 17;

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

std::vector<std::uint16_t> make_values(const GpuCodecBenchOptions& options, std::size_t count) {
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

// GPU memory of a run, enough for every codec.
struct GpuCodecWork {
    GpuCodecWork(const GpuCodecBenchOptions& options, std::size_t tile_count,
                 std::size_t most_payload)
        : tiles(tile_count),
          values(make_values(options, tile_count * kTileElems)),
          payloads(tile_count * most_payload),
          squares(tile_count * codec::kSquareParts * sizeof(double)) {
        for (std::size_t i = 0; i < kInputs; ++i) {
            inputs.emplace_back(values.size() * sizeof(std::uint16_t));
            copy_to_gpu(inputs.back().span(), std::as_bytes(std::span(values)), stream);
        }
        copy = GpuBuffer(inputs.front().size());
        stream.wait();
    }

    codec::GpuEncoding encoding(std::size_t input) {
        return {.tiles = tiles,
                .gradient = inputs[input].span().data(),
                .gradient_dtype = Dtype::bf16,
                .payloads = payloads.as<std::byte>(),
                .squares = squares.as<double>(),
                .random_key = 1};
    }

    memory::Stream stream;
    std::size_t tiles;
    std::vector<std::uint16_t> values;
    std::vector<GpuBuffer> inputs;
    GpuBuffer copy;
    GpuBuffer payloads;
    GpuBuffer squares;
};

// Compares the payloads with the CPU's.
void verify(GpuCodecWork& work, const codec::CodecSettings& settings) {
    const auto scalar = codec::make_codec(settings);
    const std::size_t bytes = scalar->payload_bytes();
    std::vector<std::byte> payloads(work.tiles * bytes);
    copy_to_host(payloads, work.payloads.span().first(payloads.size()), work.stream);
    work.stream.wait();
    std::vector<float> tile(kTileElems);
    std::vector<std::byte> payload(bytes);
    for (std::size_t i = 0; i < std::min(kVerified, work.tiles); ++i) {
        const std::size_t number = i + 1 < kVerified ? i : work.tiles - 1;
        std::transform(work.values.begin() + static_cast<std::ptrdiff_t>(number * kTileElems),
                       work.values.begin() + static_cast<std::ptrdiff_t>((number + 1) * kTileElems),
                       tile.begin(), from_bf16);
        scalar->encode(tile, payload, arith::tile_key(1, number));
        if (!std::ranges::equal(payload, std::span(payloads).subspan(number * bytes, bytes))) {
            throw Error(text("The codec ", settings.name, " does not give the CPU's bits in tile ",
                             number, ": do not train on this GPU, and report it."));
        }
    }
}

struct Times {
    std::vector<double> copy;
    std::vector<double> encode;
};

Times measure(GpuCodecWork& work, const GpuCodec& codec, const codec::CodecSettings& settings,
              int rounds) {
    Times times;
    std::array<Event, 3> marks;
    for (int round = 0; round <= rounds; ++round) {
        const std::size_t input = static_cast<std::size_t>(round) % kInputs;
        marks[0].record(work.stream);
        copy_on_gpu(work.copy.span(), work.inputs[input].span(), work.stream);
        marks[1].record(work.stream);
        codec.encode(work.encoding(input), work.stream);
        marks[2].record(work.stream);
        work.stream.wait();
        if (round == 0) {  // warm-up
            verify(work, settings);
            continue;
        }
        times.copy.push_back(marks[1].seconds_since(marks[0]));
        times.encode.push_back(marks[2].seconds_since(marks[1]));
    }
    return times;
}

nlohmann::json gpu_codec_row(const Times& times, const GpuCodecBenchOptions& options,
                             std::size_t tiles, std::size_t payload_bytes) {
    const auto parameters = static_cast<double>(tiles * kTileElems);
    const double copy_s = summary_of(times.copy).median;
    const double encode_s = summary_of(times.encode).median;
    const double payload = static_cast<double>(payload_bytes) / kTileElems;
    const double copy_rate = 2 * sizeof(std::uint16_t) / copy_s;
    const double encode_rate = (sizeof(std::uint16_t) + payload) / encode_s;
    return {{"parameters", parameters},
            {"rounds", options.rounds},
            {"bytes_per_parameter", payload},
            {"copy_us", copy_s * 1e6},
            {"copy_tb_per_s", copy_rate * parameters / 1e12},
            {"encode_us", encode_s * 1e6},
            {"encode_over_copy", encode_s / copy_s},
            {"encode_share_of_bandwidth", encode_rate / copy_rate},
            {"verified", true}};
}

void print_gpu_codec_row(std::ostream& out, const nlohmann::json& row) {
    std::array<char, 200> line{};
    std::snprintf(line.data(), line.size(), "%-8s  %15.4f  %9.1f  %11.1f  %12.2f  %8.1f %%\n",
                  row["codec"].get<std::string>().c_str(), row["bytes_per_parameter"].get<double>(),
                  row["copy_us"].get<double>(), row["encode_us"].get<double>(),
                  row["encode_over_copy"].get<double>(),
                  row["encode_share_of_bandwidth"].get<double>() * 100);
    out << line.data() << std::flush;
}

}  // namespace

nlohmann::json bench_codec_on_gpu(const GpuCodecBenchOptions& options, std::ostream& out) {
    use_first_gpu();
    const std::vector<codec::Kernels>& variants = codec::kernels();
    codec::CodecSettings settings;
    settings.keep = options.keep;
    settings.rounding = codec::parse_rounding(options.rounding);
    settings.dtype = options.dtype;
    settings.kernels = variants.data();
    const std::vector<std::string> names =
        options.codecs.empty() ? codec::codec_names() : options.codecs;
    std::size_t most = 0;
    for (const std::string& name : names) {
        settings.name = name;
        most = std::max(most, codec::make_codec(settings)->payload_bytes());
    }
    GpuCodecWork work(options, round_up(options.parameters, kTileElems) / kTileElems, most);
    out << static_cast<double>(work.tiles * kTileElems) / 1e6 << " M parameters in bf16 on "
        << memory::name_of_gpu(0) << ", rounding " << options.rounding
        << "; shares of the copy's bandwidth\n"
           "codec     bytes/parameter  copy (us)  encode (us)  encode/copy       share\n";
    nlohmann::json rows = nlohmann::json::array();
    for (const std::string& name : names) {
        settings.name = name;
        const GpuCodec codec(settings);
        const Times times = measure(work, codec, settings, options.rounds);
        nlohmann::json row = gpu_codec_row(times, options, work.tiles, codec.payload_bytes());
        row["commit"] = commit();
        row["gpu"] = memory::name_of_gpu(0);
        row["codec"] = name;
        row["rounding"] = options.rounding;
        row["keep"] = options.keep;
        print_gpu_codec_row(out, row);
        rows.push_back(row);
    }
    return rows;
}

}  // namespace nearstep::bench
