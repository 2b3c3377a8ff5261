#include "bench/gpu_delta_bench.hpp"

#include "base/error.hpp"
#include "base/statistics.hpp"
#include "base/units.hpp"
#include "base/version.hpp"
#include "bench/delta_workload.hpp"
#include "bench/first_gpu.hpp"
#include "codec/gpu_delta.hpp"
#include "memory/gpu.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

namespace nearstep::bench {

namespace {

using memory::Event;
using memory::GpuBuffer;
using shard::kTileElems;

constexpr std::size_t kMessageBytes = kMessageElems * sizeof(std::uint16_t);

class GpuDeltaWork {
public:
    explicit GpuDeltaWork(std::size_t messages)
        : messages_(messages),
          room_bytes_(round_up(codec::message_room_bytes(kMessageTiles), 256)),
          old_(messages * kMessageElems),
          fresh_(old_.size()),
          rooms_(messages * room_bytes_),
          rooms_there_(rooms_.size()),
          old_there_(messages * kMessageBytes),
          fresh_there_(old_there_.size()),
          copy_(old_there_.size()),
          verdicts_(messages * sizeof(std::uint32_t)) {}

    // Encodes on the CPU and uploads old and new parameters.
    void fill(const Shares& shares) {
        fill_parameters(shares, old_, fresh_);
        readers_.clear();
        bytes_ = 0;
        for (std::size_t message = 0; message < messages_; ++message) {
            codec::DeltaWriter writer(room(message), tiles_of(message));
            for (std::size_t tile = 0; tile < kMessageTiles; ++tile) {
                const std::size_t at = message * kMessageElems + tile * kTileElems;
                writer.add(&old_[at], &fresh_[at]);
            }
            bytes_ += writer.finish();
            readers_.emplace_back(room(message), tiles_of(message));
        }
        copy_to_gpu(old_there_.span(), std::as_bytes(std::span(old_)), stream_);
        copy_to_gpu(fresh_there_.span(), std::as_bytes(std::span(fresh_)), stream_);
        fill_with_zeros(verdicts_.span(), stream_);
        stream_.wait();
    }

    void copy_fresh() { copy_on_gpu(copy_.span(), fresh_there_.span(), stream_); }
    void copy_old() { copy_on_gpu(copy_.span(), old_there_.span(), stream_); }

    void upload() {
        for (std::size_t message = 0; message < messages_; ++message) {
            const std::size_t bytes = readers_[message].bytes();
            copy_to_gpu(room_there(message).first(bytes), room(message).first(bytes), stream_);
        }
    }

    void apply() {
        std::vector<codec::GpuDelta> deltas;
        for (std::size_t message = 0; message < messages_; ++message) {
            deltas.push_back({.reader = &readers_[message],
                              .message = room_there(message).data(),
                              .parameters = copy_.as<std::uint16_t>() + message * kMessageElems,
                              .verdict = verdicts_.as<std::uint32_t>() + message});
            if (deltas.size() == codec::kMostDeltas || message + 1 == messages_) {
                if (const auto fault = start_deltas(deltas, stream_)) {
                    throw Error(*fault);
                }
                deltas.clear();
            }
        }
    }

    // Call after apply().
    void verify() {
        std::vector<std::uint32_t> verdicts(messages_);
        std::vector<std::uint16_t> found(fresh_.size());
        copy_to_host(std::as_writable_bytes(std::span(verdicts)), verdicts_.span(), stream_);
        copy_to_host(std::as_writable_bytes(std::span(found)), copy_.span(), stream_);
        stream_.wait();
        for (std::size_t message = 0; message < messages_; ++message) {
            if (const auto fault = fault_of(readers_[message], verdicts[message])) {
                throw Error(*fault);
            }
        }
        if (found != fresh_) {
            throw Error(
                "Deltas do not give the new parameters on this GPU: do not train on it, and "
                "report it.");
        }
    }

    const memory::Stream& stream() const { return stream_; }
    std::size_t message_bytes() const { return bytes_; }
    double parameters() const { return static_cast<double>(fresh_.size()); }

private:
    static shard::TileRange tiles_of(std::size_t message) {
        return {message * kMessageTiles, (message + 1) * kMessageTiles};
    }
    std::span<std::byte> room(std::size_t message) {
        return rooms_.span().subspan(message * room_bytes_, room_bytes_);
    }
    std::span<std::byte> room_there(std::size_t message) {
        return rooms_there_.span().subspan(message * room_bytes_, room_bytes_);
    }

    memory::Stream stream_;
    std::size_t messages_;
    std::size_t room_bytes_;
    std::vector<std::uint16_t> old_;
    std::vector<std::uint16_t> fresh_;
    memory::PinnedBuffer rooms_;
    GpuBuffer rooms_there_;
    GpuBuffer old_there_;
    GpuBuffer fresh_there_;
    GpuBuffer copy_;
    GpuBuffer verdicts_;
    std::vector<codec::DeltaReader> readers_;
    std::size_t bytes_ = 0;
};

nlohmann::json measure(GpuDeltaWork& work, int rounds) {
    std::vector<double> copy_s;
    std::vector<double> upload_s;
    std::vector<double> apply_s;
    std::array<Event, 5> marks;
    for (int round = 0; round <= rounds; ++round) {
        marks[0].record(work.stream());
        work.copy_fresh();
        marks[1].record(work.stream());
        work.upload();
        marks[2].record(work.stream());
        work.copy_old();
        marks[3].record(work.stream());
        work.apply();
        marks[4].record(work.stream());
        work.stream().wait();
        if (round == 0) {  // warm-up
            work.verify();
            continue;
        }
        copy_s.push_back(marks[1].seconds_since(marks[0]));
        upload_s.push_back(marks[2].seconds_since(marks[1]));
        apply_s.push_back(marks[4].seconds_since(marks[3]));
    }
    work.verify();
    const double plain = work.parameters() * sizeof(std::uint16_t);
    const auto message = static_cast<double>(work.message_bytes());
    const double copy = summary_of(copy_s).median;
    const double upload = summary_of(upload_s).median;
    const double apply = summary_of(apply_s).median;
    return {{"parameters", work.parameters()},
            {"rounds", rounds},
            {"bytes_per_parameter", message / work.parameters()},
            {"copy_us", copy * 1e6},
            {"copy_gb_per_s", plain / copy / 1e9},
            {"upload_us", upload * 1e6},
            {"upload_gb_per_s", plain / upload / 1e9},
            {"apply_us", apply * 1e6},
            {"apply_gb_per_s", plain / apply / 1e9},
            {"apply_share_of_copy", copy / apply},
            {"apply_share_of_bandwidth", (2 * plain + message) / apply / (2 * plain / copy)},
            {"verified", true}};
}

void print_gpu_delta_row(std::ostream& out, const nlohmann::json& row) {
    std::array<char, 160> line{};
    std::snprintf(
        line.data(), line.size(),
        "%7.1f %%  %7.1f %%  %15.4f  %9.1f  %11.1f  %10.1f  %12.1f  %6.1f %%  %8.1f %%\n",
        row["changed_share"].get<double>() * 100, row["escaped_share"].get<double>() * 100,
        row["bytes_per_parameter"].get<double>(), row["copy_us"].get<double>(),
        row["upload_us"].get<double>(), row["apply_us"].get<double>(),
        row["apply_gb_per_s"].get<double>(), row["apply_share_of_copy"].get<double>() * 100,
        row["apply_share_of_bandwidth"].get<double>() * 100);
    out << line.data() << std::flush;
}

}  // namespace

nlohmann::json bench_delta_on_gpu(const GpuDeltaBenchOptions& options, std::ostream& out) {
    use_first_gpu();
    GpuDeltaWork work(round_up(options.parameters, kMessageElems) / kMessageElems);
    out << work.parameters() / 1e6 << " M parameters on " << memory::name_of_gpu(0)
        << "; GB/s of 16-bit parameters, shares of the copy\n"
           "  changed    escaped  bytes/parameter  copy (us)  upload (us)  apply (us)  apply "
           "(GB/s)     share  bandwidth\n";
    nlohmann::json rows = nlohmann::json::array();
    for (const Shares& shares : kShares) {
        work.fill(shares);
        nlohmann::json row = measure(work, options.rounds);
        row["commit"] = commit();
        row["gpu"] = memory::name_of_gpu(0);
        row["changed_share"] = shares.changed;
        row["escaped_share"] = shares.escaped;
        print_gpu_delta_row(out, row);
        rows.push_back(row);
    }
    return rows;
}

}  // namespace nearstep::bench
