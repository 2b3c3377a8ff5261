#include "bench/exchange_bench.hpp"

#include "base/error.hpp"
#include "base/statistics.hpp"
#include "base/version.hpp"
#include "memory/gpu.hpp"
#include "mpi/nccl/group.hpp"
#include "mpi/topology.hpp"
#include "offload/gpu_group_sum.hpp"
#include "shard/partition.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::bench {

namespace {

using memory::Event;
using memory::GpuBuffer;
using shard::kTileElems;

constexpr std::chrono::seconds kLimit{60};

// This rank's GPU. Throws if some rank has none of its own.
int own_gpu(const mpi::Communicator& world) {
    const int local_rank = mpi::discover_nodes(world).rank_in_group(world.rank());
    const std::optional<int> gpu =
        local_rank < memory::gpus() ? std::optional(local_rank) : std::nullopt;
    if (const auto obstacle = nccl::find_obstacle(world, gpu)) {
        throw ConfigError(text("GPUs cannot exchange here: ", *obstacle,
                               ". Start as many ranks on each node as it has GPUs, at least 2."));
    }
    return *gpu;
}

class ExchangeBench {
public:
    ExchangeBench(const mpi::Communicator& world, const ExchangeBenchOptions& options,
                  std::ostream& out)
        : world_(world),
          options_(options),
          out_(out),
          gpu_(own_gpu(world)),
          group_(world, gpu_, watchdog_, kLimit) {
        const auto ranks = static_cast<std::size_t>(world.size());
        tiles_ = (options.parameters + ranks * kTileElems - 1) / (ranks * kTileElems) * ranks;
    }

    nlohmann::json run() {
        const std::size_t elems = tiles_ * kTileElems;
        const std::size_t mine = elems / static_cast<std::size_t>(world_.size());
        GpuBuffer all(elems * 2);
        GpuBuffer part(mine * 2);
        fill(all, to_bf16(static_cast<float>(world_.rank() + 1)));
        const float sum = static_cast<float>(world_.size() * (world_.size() + 1)) / 2;
        measure("reduce_scatter", elems * 2, stream_, stream_,
                [&] { group_.reduce_scatter(all.span(), part.span(), Dtype::bf16, stream_); });
        verify("reduce_scatter", from_bf16(last<std::uint16_t>(part.span())) == sum);

        fill(part, to_bf16(static_cast<float>(world_.rank() + 1)));
        measure("all_gather", elems * 2, stream_, stream_,
                [&] { group_.all_gather(part.span(), all.span(), stream_); });
        verify("all_gather",
               from_bf16(last<std::uint16_t>(all.span())) == static_cast<float>(world_.size()));
        exchange_parts(all, part);
        measure_group_sum(elems, sum);
        return rows_;
    }

private:
    // As all_gather, by sends and receives.
    void exchange_parts(GpuBuffer& all, GpuBuffer& part) {
        const auto ranks = static_cast<std::size_t>(world_.size());
        const auto me = static_cast<std::size_t>(world_.rank());
        fill(part, to_bf16(static_cast<float>(world_.rank() + 2)));
        std::vector<std::span<const std::byte>> to(ranks, part.span());
        std::vector<std::span<std::byte>> from(ranks);
        for (std::size_t rank = 0; rank < ranks; ++rank) {
            from[rank] = all.span().subspan(rank * part.size(), part.size());
        }
        const std::size_t other = me == ranks - 1 ? ranks - 2 : ranks - 1;
        const std::span<const std::byte> received = from[other];
        to[me] = {};
        from[me] = {};
        measure("send_receive", all.size(), stream_, stream_,
                [&] { group_.exchange(to, from, stream_); });
        verify("send_receive",
               from_bf16(last<std::uint16_t>(received)) == static_cast<float>(other + 2));
    }

    void measure_group_sum(std::size_t elems, float sum) {
        GpuBuffer gradient(elems * sizeof(float));
        fill(gradient, static_cast<float>(world_.rank() + 1));
        const auto ranks = static_cast<std::size_t>(world_.size());
        const offload::Slices slices({0, tiles_}, world_.size(), [&](std::size_t tile) {
            return static_cast<int>(tile * ranks / tiles_);
        });
        offload::GpuGroupSum group_sum(group_, {slices}, Dtype::bf16);
        offload::GpuGroupSum::Slice slice;
        measure("group_sum", elems * 2, stream_, group_sum.stream(),
                [&] { slice = group_sum.add_up(0, gradient.as<float>(), stream_); });
        float value = 0;
        const auto* values = reinterpret_cast<const std::byte*>(slice.values);
        copy_to_host(std::as_writable_bytes(std::span(&value, 1)),
                     {values + (slice.tiles * kTileElems - 1) * sizeof(float), sizeof(float)},
                     stream_);
        stream_.wait();
        verify("group_sum", value == sum);
    }

    template <typename T>
    void fill(GpuBuffer& buffer, T value) {
        const std::vector<T> values(buffer.size() / sizeof(T), value);
        copy_to_gpu(buffer.span(), std::as_bytes(std::span(values)), stream_);
        stream_.wait();
    }

    template <typename T>
    T last(std::span<const std::byte> bytes) {
        T value{};
        copy_to_host(std::as_writable_bytes(std::span(&value, 1)), bytes.last(sizeof value),
                     stream_);
        stream_.wait();
        return value;
    }

    // Measures work that begins in one stream and ends in another. Several are queued at once, as
    // in training, where the GPU does not wait for the host.
    void measure(const std::string& operation, std::size_t bytes, const memory::Stream& begins,
                 const memory::Stream& ends, const std::function<void()>& work) {
        constexpr int kWarmUp = 3;
        constexpr int kQueued = 4;
        Event begin;
        Event end;
        std::vector<double> times;
        for (int round = 0; round < kWarmUp + options_.rounds; ++round) {
            world_.barrier();
            begin.record(begins);
            for (int i = 0; i < kQueued; ++i) {
                work();
            }
            end.record(ends);
            group_.wait_for(end);
            const double mine = end.seconds_since(begin) / kQueued;
            const std::vector<double> of_ranks = world_.all_gather({&mine, 1});
            if (round >= kWarmUp) {
                times.push_back(*std::max_element(of_ranks.begin(), of_ranks.end()));
            }
        }
        const double seconds = summary_of(times).median;
        const double least = static_cast<double>(bytes) * (world_.size() - 1) / world_.size();
        rows_.push_back({{"commit", commit()},
                         {"gpu", memory::name_of_gpu(gpu_)},
                         {"nccl", nccl::library_version()},
                         {"ranks", world_.size()},
                         {"operation", operation},
                         {"bytes", bytes},
                         {"rounds", options_.rounds},
                         {"queued", kQueued},
                         {"us", seconds * 1e6},
                         {"bus_gb_s", least / seconds / 1e9},
                         {"verified", true}});
    }

    // Requires that the last row's result is right on all ranks.
    void verify(const std::string& operation, bool is_right) {
        if (!world_.agree(is_right)) {
            throw Error(text("The result of ", operation, " is wrong: do not trust NCCL here."));
        }
        if (world_.rank() == 0) {
            out_ << rows_.back().dump() << "\n" << std::flush;
        }
    }

    const mpi::Communicator& world_;
    ExchangeBenchOptions options_;
    std::ostream& out_;
    int gpu_;
    nccl::Watchdog watchdog_;
    nccl::Group group_;
    memory::Stream stream_{memory::StreamPriority::high};
    std::size_t tiles_ = 0;
    nlohmann::json rows_ = nlohmann::json::array();
};

}  // namespace

nlohmann::json bench_exchange(const mpi::Communicator& world, const ExchangeBenchOptions& options,
                              std::ostream& out) {
    return ExchangeBench(world, options, out).run();
}

}  // namespace nearstep::bench
