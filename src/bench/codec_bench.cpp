#include "bench/codec_bench.hpp"

#include "base/error.hpp"
#include "base/random.hpp"
#include "base/statistics.hpp"
#include "base/units.hpp"
#include "base/version.hpp"
#include "bench/variants.hpp"
#include "codec/codec.hpp"
#include "memory/buffer.hpp"
#include "shard/partition.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <span>

namespace nearstep::bench {

namespace {

using codec::Codec;
using shard::kTileElems;

// Tiles with different content, which the gradient repeats.
constexpr std::size_t kKindsOfTiles = 16;

class CodecWork {
public:
    CodecWork(std::size_t tiles, std::size_t most_payload_bytes)
        : tiles_(tiles),
          gradients_(tiles * kTileElems * sizeof(float)),
          sums_(gradients_.size()),
          payloads_(tiles * most_payload_bytes) {
        for (std::size_t tile = 0; tile < tiles; ++tile) {
            if (tile >= kKindsOfTiles) {
                std::ranges::copy(gradient(tile - kKindsOfTiles), gradient(tile).begin());
                continue;
            }
            for (std::size_t i = 0; i < kTileElems; ++i) {
                gradient(tile)[i] = static_cast<float>(1e-3 * random_normal(1, tile, i));
            }
        }
    }

    std::size_t tiles() const { return tiles_; }
    std::span<float> gradient(std::size_t tile) {
        return gradients_.as<float>().subspan(tile * kTileElems, kTileElems);
    }
    std::span<float> sum(std::size_t tile) {
        return sums_.as<float>().subspan(tile * kTileElems, kTileElems);
    }
    std::span<std::byte> payload(const Codec& codec, std::size_t tile) {
        return payloads_.span().subspan(tile * codec.payload_bytes(), codec.payload_bytes());
    }
    static arith::TileKey key(std::size_t tile) { return arith::tile_key(1, tile); }

    void copy() { std::memcpy(sums_.span().data(), gradients_.span().data(), gradients_.size()); }
    void encode(const Codec& codec) {
        for (std::size_t tile = 0; tile < tiles_; ++tile) {
            codec.encode(gradient(tile), payload(codec, tile), key(tile));
        }
    }
    void decode(const Codec& codec) {
        for (std::size_t tile = 0; tile < tiles_; ++tile) {
            codec.decode_add(payload(codec, tile), 0, sum(tile));
        }
    }

private:
    std::size_t tiles_;
    memory::Buffer gradients_;
    memory::Buffer sums_;
    memory::Buffer payloads_;
};

// Call after a round. Compares payloads and sums with those of the scalar variant.
void verify(CodecWork& workload, const Codec& codec, const Codec& scalar) {
    std::vector<std::byte> payload(scalar.payload_bytes());
    std::vector<float> sum(kTileElems);
    for (std::size_t i = 0; i < std::min(workload.tiles(), kKindsOfTiles + 1); ++i) {
        const std::size_t tile = i < kKindsOfTiles ? i : workload.tiles() - 1;
        scalar.encode(workload.gradient(tile), payload, CodecWork::key(tile));
        std::ranges::copy(workload.gradient(tile), sum.begin());
        scalar.decode_add(payload, 0, sum);
        if (!std::ranges::equal(payload, workload.payload(codec, tile)) ||
            !std::ranges::equal(sum, workload.sum(tile))) {
            throw Error(text("The codec ", codec.name(), " does not give the bits of its scalar ",
                             "variant in tile ", tile,
                             ": do not train on this CPU, and report it."));
        }
    }
}

nlohmann::json measure(CodecWork& workload, const Codec& codec, const Codec& scalar, int rounds) {
    std::vector<double> copy_s;
    std::vector<double> encode_s;
    std::vector<double> decode_s;
    for (int round = 0; round <= rounds; ++round) {
        const double copying = seconds_of([&] { workload.copy(); });
        const double encoding = seconds_of([&] { workload.encode(codec); });
        const double decoding = seconds_of([&] { workload.decode(codec); });
        if (round == 0) {  // warm-up
            verify(workload, codec, scalar);
            continue;
        }
        copy_s.push_back(copying);
        encode_s.push_back(encoding);
        decode_s.push_back(decoding);
    }
    const auto parameters = static_cast<double>(workload.tiles() * kTileElems);
    const double gigabytes = parameters * sizeof(float) / 1e9;
    const auto rate_of = [&](const std::vector<double>& seconds) {
        return gigabytes / summary_of(seconds).median;
    };
    return {{"parameters", parameters},
            {"rounds", rounds},
            {"bytes_per_parameter", static_cast<double>(codec.payload_bytes()) / kTileElems},
            {"copy_gb_per_s", rate_of(copy_s)},
            {"encode_gb_per_s", rate_of(encode_s)},
            {"decode_gb_per_s", rate_of(decode_s)},
            {"encode_share_of_copy", summary_of(ratios_of(copy_s, encode_s)).median},
            {"decode_share_of_copy", summary_of(ratios_of(copy_s, decode_s)).median},
            {"verified", true}};
}

void print_codec_row(std::ostream& out, const nlohmann::json& row) {
    std::array<char, 160> line{};
    std::snprintf(
        line.data(), line.size(),
        "%-8s  %-7s  %15.4f  %13.2f  %6.1f %%  %13.2f  %6.1f %%  %11.2f\n",
        row["codec"].get<std::string>().c_str(), row["kernels"].get<std::string>().c_str(),
        row["bytes_per_parameter"].get<double>(), row["encode_gb_per_s"].get<double>(),
        row["encode_share_of_copy"].get<double>() * 100, row["decode_gb_per_s"].get<double>(),
        row["decode_share_of_copy"].get<double>() * 100, row["copy_gb_per_s"].get<double>());
    out << line.data() << std::flush;
}

codec::CodecSettings settings_of(const CodecBenchOptions& options) {
    codec::CodecSettings settings;
    settings.keep = options.keep;
    settings.rounding = codec::parse_rounding(options.rounding);
    settings.dtype = options.dtype;
    return settings;
}

}  // namespace

nlohmann::json bench_codec(const CodecBenchOptions& options, std::ostream& out) {
    codec::CodecSettings settings = settings_of(options);
    const std::vector<codec::Kernels> variants =
        variants_named("--kernels", options.kernels, codec::kernels());
    const std::vector<std::string> names =
        options.codecs.empty() ? codec::codec_names() : options.codecs;
    std::size_t most = 0;
    for (const std::string& name : names) {
        settings.name = name;
        most = std::max(most, codec::make_codec(settings)->payload_bytes());
    }
    CodecWork workload(round_up(options.parameters, kTileElems) / kTileElems, most);
    out << static_cast<double>(workload.tiles() * kTileElems) / 1e6
        << " M parameters, one thread; GB/s of fp32 gradients, rounding " << options.rounding
        << ", shares of the copy\n"
           "codec     kernels  bytes/parameter  encode (GB/s)     share  decode (GB/s)     share  "
           "copy (GB/s)\n";
    nlohmann::json rows = nlohmann::json::array();
    for (const std::string& name : names) {
        settings.name = name;
        settings.kernels = &codec::kernels().front();
        const auto scalar = codec::make_codec(settings);
        for (const codec::Kernels& kernels : variants) {
            settings.kernels = &kernels;
            nlohmann::json row =
                measure(workload, *codec::make_codec(settings), *scalar, options.rounds);
            row["commit"] = commit();
            row["codec"] = name;
            row["kernels"] = kernels.name;
            row["rounding"] = options.rounding;
            row["keep"] = options.keep;
            print_codec_row(out, row);
            rows.push_back(row);
        }
    }
    return rows;
}

}  // namespace nearstep::bench
