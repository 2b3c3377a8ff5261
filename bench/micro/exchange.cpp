// Measures how fast the GPUs of a node exchange gradients and parameters. Used by main.cpp.
#include "base/error.hpp"
#include "bench/micro/benchmarks.hpp"
#include "memory/gpu.hpp"
#include "mpi/nccl/group.hpp"
#include "mpi/topology.hpp"
#include "offload/gpu_group_sum.hpp"
#include "shard/partition.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace nearstep::bench {

namespace {

using memory::Event;
using memory::GpuBuffer;
using shard::kTileElems;

constexpr std::chrono::seconds kLimit{60};
constexpr int kWarmUps = 3;
constexpr int kRounds = 20;
// Several are queued at once, as in training, where the GPU does not wait for the host.
constexpr int kQueued = 4;

// Returns this rank's GPU. Throws if some rank has none of its own.
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

// All ranks measure in the same order.
class Exchanges {
public:
    Exchanges(const mpi::Communicator& world, const MicroOptions& options)
        : world_(world), gpu_(own_gpu(world)), group_(world, gpu_, watchdog_, kLimit) {
        const std::size_t elems_of_tiles = ranks_ * kTileElems;
        tiles_ = (options.parameters + elems_of_tiles - 1) / elems_of_tiles * ranks_;
        all_ = GpuBuffer(tiles_ * kTileElems * 2);
        part_ = GpuBuffer(all_.size() / ranks_);
    }

    void reduce_scatter(benchmark::State& state) {
        fill(all_, to_bf16(static_cast<float>(me_ + 1)));
        measure(state, stream_,
                [&] { group_.reduce_scatter(all_.span(), part_.span(), Dtype::bf16, stream_); });
        verify("reduce_scatter", from_bf16(last<std::uint16_t>(part_.span())) == sum());
    }

    void all_gather(benchmark::State& state) {
        fill(part_, to_bf16(static_cast<float>(me_ + 1)));
        measure(state, stream_, [&] { group_.all_gather(part_.span(), all_.span(), stream_); });
        verify("all_gather",
               from_bf16(last<std::uint16_t>(all_.span())) == static_cast<float>(ranks_));
    }

    // The all_gather by sends and receives.
    void send_receive(benchmark::State& state) {
        fill(part_, to_bf16(static_cast<float>(me_ + 2)));
        std::vector<std::span<const std::byte>> to(ranks_, part_.span());
        std::vector<std::span<std::byte>> from(ranks_);
        for (std::size_t rank = 0; rank < ranks_; ++rank) {
            from[rank] = all_.span().subspan(rank * part_.size(), part_.size());
        }
        const std::size_t other = me_ == ranks_ - 1 ? ranks_ - 2 : ranks_ - 1;
        const std::span<const std::byte> received = from[other];
        to[me_] = {};
        from[me_] = {};
        measure(state, stream_, [&] { group_.exchange(to, from, stream_); });
        verify("send_receive",
               from_bf16(last<std::uint16_t>(received)) == static_cast<float>(other + 2));
    }

    void group_sum(benchmark::State& state) {
        GpuBuffer gradient(all_.size() * 2);
        fill(gradient, static_cast<float>(me_ + 1));
        std::vector<exchange::ByRank::Item> tiles;
        for (std::size_t tile = 0; tile < tiles_; ++tile) {
            tiles.push_back(
                {static_cast<int>(tile * ranks_ / tiles_), static_cast<std::uint32_t>(tile)});
        }
        const exchange::ByRank slices(world_.size(), std::move(tiles));
        offload::GpuGroupSum group_sum(group_, {slices}, Dtype::bf16);
        offload::GpuGroupSum::Slice slice;
        measure(state, group_sum.stream(),
                [&] { slice = group_sum.add_up(0, gradient.as<float>(), stream_); });
        const std::size_t bytes = slice.tiles * kTileElems * sizeof(float);
        const auto* values = reinterpret_cast<const std::byte*>(slice.values);
        verify("group_sum", last<float>({values, bytes}) == sum());
    }

private:
    // Work begins in stream_ and ends in `ends`.
    void measure(benchmark::State& state, const memory::Stream& ends,
                 const std::function<void()>& work) {
        Event begin;
        Event end;
        const auto timed = [&] {
            world_.barrier();
            begin.record(stream_);
            for (int i = 0; i < kQueued; ++i) {
                work();
            }
            end.record(ends);
            group_.wait_for(end);
            const double mine = end.seconds_since(begin) / kQueued;
            const std::vector<double> of_ranks = world_.all_gather({&mine, 1});
            return *std::max_element(of_ranks.begin(), of_ranks.end());
        };
        for (int i = 0; i < kWarmUps; ++i) {
            timed();
        }
        for (auto _ : state) {
            state.SetIterationTime(timed());
        }
        state.SetBytesProcessed(state.iterations() *
                                static_cast<std::int64_t>(all_.size() - part_.size()));
    }

    void verify(const std::string& operation, bool is_right) {
        if (!world_.agree(is_right)) {
            throw Error(text("The result of ", operation, " is wrong: do not trust NCCL here."));
        }
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

    // The sum of 1, 2, ... over the ranks.
    float sum() const { return static_cast<float>(ranks_ * (ranks_ + 1)) / 2; }

    const mpi::Communicator& world_;
    std::size_t ranks_ = static_cast<std::size_t>(world_.size());
    std::size_t me_ = static_cast<std::size_t>(world_.rank());
    int gpu_;
    nccl::Watchdog watchdog_;
    nccl::Group group_;
    memory::Stream stream_{memory::StreamPriority::high};
    std::size_t tiles_ = 0;
    GpuBuffer all_;
    GpuBuffer part_;
};

}  // namespace

void add_exchanges(const mpi::Communicator& world, const MicroOptions& options) {
    const auto exchanges = std::make_shared<Exchanges>(world, options);
    const auto add = [&](const char* name, void (Exchanges::*operation)(benchmark::State&)) {
        benchmark::RegisterBenchmark(
            name, [=](benchmark::State& state) { ((*exchanges).*operation)(state); })
            ->UseManualTime()
            ->Iterations(kRounds)
            ->Unit(benchmark::kMicrosecond);
    };
    add("exchange/reduce_scatter", &Exchanges::reduce_scatter);
    add("exchange/all_gather", &Exchanges::all_gather);
    add("exchange/send_receive", &Exchanges::send_receive);
    add("exchange/group_sum", &Exchanges::group_sum);
    benchmark::AddCustomContext("nccl", nccl::library_version());
}

}  // namespace nearstep::bench
