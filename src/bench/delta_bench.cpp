#include "bench/delta_bench.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/random.hpp"
#include "base/statistics.hpp"
#include "base/units.hpp"
#include "base/version.hpp"
#include "bench/variants.hpp"
#include "codec/delta.hpp"
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

using codec::DeltaKernels;
using shard::kTileElems;

constexpr std::size_t kMessageTiles = 16;
constexpr std::size_t kMessageElems = kMessageTiles * kTileElems;

// Shares of a step's parameters.
struct Shares {
    double changed;
    double escaped;  // changed by more than one unit in the last place
};

// Shares seen in steps of a 124M model at learning rates from 0 to 6e-4, and a full change.
constexpr std::array kShares = {Shares{0, 0},         Shares{0.015, 0.002}, Shares{0.049, 0.007},
                                Shares{0.126, 0.024}, Shares{0.25, 0.06},   Shares{0.76, 0.46},
                                Shares{1, 1}};

// Both sizes are multiples of kMessageElems. Every message repeats the first one's parameters.
void fill_parameters(const Shares& shares, std::span<std::uint16_t> old,
                     std::span<std::uint16_t> fresh) {
    for (std::size_t i = 0; i < kMessageElems; ++i) {
        const std::uint64_t bits = random_bits(1, 0, i);
        const double draw = random_uniform(1, 1, i);
        const int unit = (bits & 1U) != 0 ? 1 : -1;
        const int jump = draw < shares.escaped ? 2 + static_cast<int>((bits >> 1U) % 100) : 1;
        old[i] = static_cast<std::uint16_t>(bits >> 32U);
        fresh[i] =
            static_cast<std::uint16_t>(draw < shares.changed ? old[i] + unit * jump : old[i]);
    }
    for (std::size_t at = kMessageElems; at < old.size(); at += kMessageElems) {
        std::ranges::copy(old.first(kMessageElems), old.data() + at);
        std::ranges::copy(fresh.first(kMessageElems), fresh.data() + at);
    }
}

class DeltaWork {
public:
    explicit DeltaWork(std::size_t messages)
        : messages_(messages),
          room_bytes_(codec::message_room_bytes(kMessageTiles)),
          old_(messages * kMessageElems * sizeof(std::uint16_t)),
          fresh_(old_.size()),
          copy_(old_.size()),
          rooms_(messages * room_bytes_) {}

    void fill(const Shares& shares) {
        fill_parameters(shares, old_.as<std::uint16_t>(), fresh_.as<std::uint16_t>());
    }

    void copy_from(const memory::Buffer& from) {
        std::memcpy(copy_.span().data(), from.span().data(), copy_.size());
    }
    void copy_old() { copy_from(old_); }
    void copy_fresh() { copy_from(fresh_); }

    void encode(const DeltaKernels& kernels) {
        bytes_ = 0;
        for (std::size_t message = 0; message < messages_; ++message) {
            codec::DeltaWriter writer(room(message), tiles_of(message), kernels);
            for (std::size_t tile = 0; tile < kMessageTiles; ++tile) {
                const std::size_t at = message * kMessageElems + tile * kTileElems;
                writer.add(&old_.as<std::uint16_t>()[at], &fresh_.as<std::uint16_t>()[at]);
            }
            bytes_ += writer.finish();
        }
    }

    void decode(const DeltaKernels& kernels) {
        for (std::size_t message = 0; message < messages_; ++message) {
            const codec::DeltaReader reader(room(message), tiles_of(message), kernels);
            const auto fault = reader.apply_to(
                copy_.span().subspan(message * kMessageElems * sizeof(std::uint16_t),
                                     kMessageElems * sizeof(std::uint16_t)));
            if (fault) {
                throw Error(*fault);
            }
        }
    }

    std::uint64_t digest() const {
        constexpr std::size_t kTileBytes = kTileElems * sizeof(std::uint16_t);
        std::uint64_t all = 0;
        for (std::size_t at = 0; at < fresh_.size(); at += kTileBytes) {
            all ^= xxh3(fresh_.span().subspan(at, kTileBytes));
        }
        return all;
    }

    // After decode(): checks the copy, and the first message against the scalar kernels'.
    bool verify() {
        std::vector<std::uint64_t> memory(room_bytes_ / sizeof(std::uint64_t));
        const DeltaKernels& scalar = codec::delta_kernels().front();
        codec::DeltaWriter writer(std::as_writable_bytes(std::span(memory)), tiles_of(0), scalar);
        for (std::size_t tile = 0; tile < kMessageTiles; ++tile) {
            writer.add(&old_.as<std::uint16_t>()[tile * kTileElems],
                       &fresh_.as<std::uint16_t>()[tile * kTileElems]);
        }
        return std::memcmp(memory.data(), room(0).data(), writer.finish()) == 0 &&
               std::ranges::equal(copy_.span(), fresh_.span());
    }

    std::size_t message_bytes() const { return bytes_; }
    double parameters() const { return static_cast<double>(messages_ * kMessageElems); }

private:
    static shard::TileRange tiles_of(std::size_t message) {
        return {message * kMessageTiles, (message + 1) * kMessageTiles};
    }
    std::span<std::byte> room(std::size_t message) {
        return rooms_.span().subspan(message * room_bytes_, room_bytes_);
    }

    std::size_t messages_;
    std::size_t room_bytes_;
    memory::Buffer old_;
    memory::Buffer fresh_;
    memory::Buffer copy_;
    memory::Buffer rooms_;
    std::size_t bytes_ = 0;
};

nlohmann::json measure(DeltaWork& workload, const DeltaKernels& kernels, int rounds) {
    std::vector<double> copy_s;
    std::vector<double> encode_s;
    std::vector<double> decode_s;
    std::vector<double> digest_s;
    std::uint64_t digests = 0;
    for (int round = 0; round <= rounds; ++round) {
        const double copying = seconds_of([&] { workload.copy_fresh(); });
        const double encoding = seconds_of([&] { workload.encode(kernels); });
        workload.copy_old();
        const double decoding = seconds_of([&] { workload.decode(kernels); });
        const double digesting = seconds_of([&] { digests ^= workload.digest(); });
        if (round == 0) {  // warm-up
            if (!workload.verify()) {
                throw Error(text("The kernels ", kernels.name, " do not give the bits of the ",
                                 "scalar ones: do not train on this CPU, and report it."));
            }
            continue;
        }
        copy_s.push_back(copying);
        encode_s.push_back(encoding);
        decode_s.push_back(decoding);
        digest_s.push_back(digesting);
    }
    const double gigabytes = workload.parameters() * sizeof(std::uint16_t) / 1e9;
    const auto rate_of = [&](const std::vector<double>& seconds) {
        return gigabytes / summary_of(seconds).median;
    };
    return {{"parameters", workload.parameters()},
            {"rounds", rounds},
            {"bytes_per_parameter",
             static_cast<double>(workload.message_bytes()) / workload.parameters()},
            {"copy_gb_per_s", rate_of(copy_s)},
            {"encode_gb_per_s", rate_of(encode_s)},
            {"decode_gb_per_s", rate_of(decode_s)},
            {"digest_gb_per_s", rate_of(digest_s)},
            {"encode_share_of_copy", summary_of(ratios_of(copy_s, encode_s)).median},
            {"decode_share_of_copy", summary_of(ratios_of(copy_s, decode_s)).median},
            {"digests", to_hex(digests)},
            {"verified", true}};
}

void print_delta_row(std::ostream& out, const nlohmann::json& row) {
    std::array<char, 160> line{};
    std::snprintf(
        line.data(), line.size(),
        "%7.1f %%  %7.1f %%  %-7s  %15.4f  %13.2f  %6.1f %%  %13.2f  %6.1f %%  %13.2f  "
        "%11.2f\n",
        row["changed_share"].get<double>() * 100, row["escaped_share"].get<double>() * 100,
        row["kernels"].get<std::string>().c_str(), row["bytes_per_parameter"].get<double>(),
        row["encode_gb_per_s"].get<double>(), row["encode_share_of_copy"].get<double>() * 100,
        row["decode_gb_per_s"].get<double>(), row["decode_share_of_copy"].get<double>() * 100,
        row["digest_gb_per_s"].get<double>(), row["copy_gb_per_s"].get<double>());
    out << line.data() << std::flush;
}

}  // namespace

nlohmann::json bench_delta(const DeltaBenchOptions& options, std::ostream& out) {
    const std::vector<DeltaKernels> variants =
        variants_named("--kernels", options.kernels, codec::delta_kernels());
    DeltaWork workload(round_up(options.parameters, kMessageElems) / kMessageElems);
    out << workload.parameters() / 1e6
        << " M parameters, one thread; GB/s of 16-bit parameters, shares of the copy\n"
           "  changed    escaped  kernels  bytes/parameter  encode (GB/s)     share  decode "
           "(GB/s)     share  digest (GB/s)  copy (GB/s)\n";
    nlohmann::json rows = nlohmann::json::array();
    for (const Shares& shares : kShares) {
        workload.fill(shares);
        for (const DeltaKernels& kernels : variants) {
            nlohmann::json row = measure(workload, kernels, options.rounds);
            row["commit"] = commit();
            row["kernels"] = kernels.name;
            row["changed_share"] = shares.changed;
            row["escaped_share"] = shares.escaped;
            print_delta_row(out, row);
            rows.push_back(row);
        }
    }
    return rows;
}

}  // namespace nearstep::bench
