// Updates whole subgroups of state in mapped memory on a GPU, while the host's engine updates
// others.
#pragma once

#include "csd/gpu_kernels.hpp"
#include "csd/group_map.hpp"
#include "csd/step_scalars.hpp"
#include "memory/gpu.hpp"
#include "store/ticket.hpp"

#include <atomic>
#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <vector>

namespace nearstep::csd {

// One thread calls begin() and is_free(); any thread may wait. Throws CudaError.
class GpuEngine {
public:
    // `lanes`: places for subgroups.
    GpuEngine(int gpu, int lanes);

    // Pins host memory in the background; until that is done the GPU is not free. The memory
    // outlives this. Only the first call has an effect.
    void pin(std::span<const std::byte> state, std::span<const std::byte> payloads);

    // True once pin() was called.
    bool has_pinned() const { return pinning_.has_value(); }

    // True if the GPU reaches the pinned memory and `parameters`, and has no more than one subgroup
    // to update.
    bool is_free(std::span<const std::byte> parameters);

    // Starts the update of a subgroup's tiles, whose scalars are those of their group, in a lane
    // that was waited for. Returns the tiles that it leaves to the host, counted from the first:
    // those that groups share, and those of skipped groups.
    std::vector<std::size_t> begin(std::size_t lane, const GpuTiles& subgroup,
                                   const GroupMap& groups, const StepScalars& scalars);

    // Returns when the lane's update is over; at once if it has none.
    void wait(std::size_t lane) const;

private:
    struct Lane {
        memory::Stream stream{memory::StreamPriority::high};
        memory::Event is_over{memory::EventWait::sleeps};
    };

    int gpu_;
    std::deque<Lane> lanes_;
    std::optional<memory::PinnedRange> state_;
    std::optional<memory::PinnedRange> payloads_;
    std::atomic<bool> is_ready_ = false;
    store::Worker pinner_;
    std::optional<store::Ticket> pinning_;
};

}  // namespace nearstep::csd
