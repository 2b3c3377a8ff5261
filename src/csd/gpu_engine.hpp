// Updates whole subgroups of state in mapped memory on a GPU, while the host's engine updates
// others.
#pragma once

#include "base/executor.hpp"
#include "csd/gpu_kernels.hpp"
#include "csd/gpu_tensors.hpp"
#include "csd/group_map.hpp"
#include "csd/step_scalars.hpp"
#include "memory/gpu.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nearstep::csd {

struct GpuEngineSettings {
    int gpu = 0;
    std::size_t lanes = 1;  // places for subgroups
    // The first so many lanes have GPU memory for a subgroup, which is read ahead into it. The
    // others are updated in the host's memory.
    std::size_t lanes_on_gpu = 0;
    std::size_t lane_bytes = 0;  // of the largest subgroup's state and, after it, parameters
    unsigned thread_blocks = kThreadBlocks;  // of an update
};

// One thread calls read(), takes(), begin() and write(); any may call the others. Throws CudaError.
//
// Few copies are under way at a time: when many are, CUDA holds up every thread that uses the GPU.
class GpuEngine {
public:
    explicit GpuEngine(const GpuEngineSettings& settings);
    GpuEngine(const GpuEngine&) = delete;
    GpuEngine& operator=(const GpuEngine&) = delete;
    // Stops pinning.
    ~GpuEngine();

    // "; the GPU helps to update it, with 6.4 GB of its memory to read ahead", for
    // Device::describe_io().
    std::string describe() const;

    // Pins host memory in the background; until that is done the GPU does nothing. The memory
    // outlives this, and no copy crosses the border of a piece. Pieces are small, since whoever
    // allocates memory of a GPU waits while one is pinned. Only the first call has an effect.
    void pin(std::vector<std::span<const std::byte>> pieces);

    // True once pin() was called, and once it is done.
    bool has_pinned() const { return pinning_.has_value(); }
    bool has_pinned_all() const { return is_ready_; }

    // Empties the lane, whose last update is over, and starts to copy a subgroup's state to the
    // GPU. False, and nothing is copied, if the lane has no GPU memory or the GPU does not reach
    // `state` yet.
    bool read(std::size_t lane, std::span<const std::byte> state);

    // Whether the GPU should update the lane's subgroup: it reaches the vector of all parameters,
    // which is empty if they stay in the state, and has the state or has no more than one subgroup
    // to update.
    bool takes(std::size_t lane, std::span<const std::byte> vector);

    // Starts the update of a subgroup's tiles, whose scalars are those of their group. Returns the
    // tiles that it leaves to the host, counted from the first: those that groups share, and those
    // of skipped groups. New parameters go to `tensors`, if given, where they cover a run of tiles.
    std::vector<std::size_t> begin(std::size_t lane, const GpuTiles& subgroup,
                                   const GroupMap& groups, const StepScalars& scalars,
                                   GpuTensors* tensors = nullptr);

    // Whether the last takes() found the state in the GPU's memory, where begin() then updates it.
    bool was_read(std::size_t lane) const { return lanes_.at(lane).is_read; }

    // Whether the GPU began the lane's last update.
    bool has_updated(std::size_t lane) const { return lanes_.at(lane).is_updated; }
    std::size_t lanes_on_gpu() const { return settings_.lanes_on_gpu; }

    // Bytes of parameters that the lane's last update wrote to tensors.
    std::size_t bytes_in_tensors(std::size_t lane) const { return lanes_.at(lane).in_tensors; }
    // Bytes of old masters that it had from tensors.
    std::size_t masters_in_tensors(std::size_t lane) const {
        return lanes_.at(lane).masters_in_tensors;
    }

    // After an update that the GPU began. `on_delivered` is called when the lane's parameters are
    // in their place. Returns at once.
    Ticket deliver(std::size_t lane, std::function<void()> on_delivered);
    // After any update, and its deliver() if the GPU began it. State in the lane's memory begins to
    // leave for its place once no parameters wait to leave, because the next forward waits for
    // those, or at once if they stay in the state. The ticket is complete when all state is there.
    // Returns at once. `leave` is called before state leaves the lane's memory, and says how far
    // its place is from that of begin().
    using Leave = std::function<std::ptrdiff_t()>;
    Ticket write(std::size_t lane, Leave leave);

private:
    // One that computes on each stream, and those that follow while the host has its turn, which
    // takes as long as four: the link stays busy.
    static constexpr int kStreams = 2;
    static constexpr int kMostAtOnce = 4 * kStreams;

    // Tiles that were updated in a lane's memory, and their places on the host.
    struct Leaving {
        GpuTiles from;
        GpuTiles to;
    };

    struct GpuLane {
        Ticket reading;
        bool is_asked = false;    // by read()
        bool is_read = false;     // the update is in the lane's memory
        bool is_updated = false;  // the last update was the GPU's
        std::vector<Leaving> leaving;
        std::size_t in_tensors = 0;          // bytes of parameters
        std::size_t masters_in_tensors = 0;  // bytes
        memory::Event read{memory::EventWait::sleeps};
        memory::Event updated{memory::EventWait::sleeps};
        memory::Event delivered{memory::EventWait::sleeps};
        memory::Event written{memory::EventWait::sleeps};
    };

    std::span<std::byte> memory_of(std::size_t lane, std::size_t bytes);
    bool reaches(std::span<const std::byte> vector);
    static void use_tensors(GpuTensors& tensors, GpuTiles& run, GpuLane& lane,
                            const memory::Stream& stream);
    void deliver_now(GpuLane& lane);
    static void copy_state(const Leaving& tiles, std::ptrdiff_t away, const memory::Stream& stream);

    GpuEngineSettings settings_;
    std::atomic<bool> is_ready_ = false;
    std::atomic<bool> is_closing_ = false;
    std::vector<memory::PinnedRange> pinned_;
    memory::GpuBuffer memory_;  // freed, and with it waited for, before the host's is unpinned
    std::vector<GpuLane> lanes_;
    const std::byte* reached_ = nullptr;  // a vector that is known to be pinned
    std::atomic<int> to_deliver_ = 0;     // updates that have begun
    memory::Stream reads_;
    memory::Stream deliveries_;
    memory::Stream writes_;
    std::size_t begun_ = 0;
    std::array<memory::Stream, kStreams> updates_{memory::Stream(memory::StreamPriority::high),
                                                  memory::Stream(memory::StreamPriority::high)};
    std::optional<Ticket> pinning_;
    Executor copies_{1};  // pins first, then moves state to the lanes' memory and back
    Executor waits_{1};   // for updates, in their order; last, so that it ends before what it uses
};

}  // namespace nearstep::csd
