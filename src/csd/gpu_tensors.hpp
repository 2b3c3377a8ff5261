// A client's parameters in GPU memory, to which a GPU's update writes their new values.
#pragma once

#include "csd/gpu_state.hpp"
#include "memory/gpu.hpp"

#include <atomic>
#include <cstddef>
#include <span>
#include <vector>

struct CUevent_st;

namespace nearstep::csd {

// New parameters are either here or in the vector in host memory, which has older ones of the tiles
// that are here. The calls that change this come from one thread and not during an update that
// writes here, except take(). Throws CudaError.
class GpuTensors {
public:
    // For a parameter vector of `elems` elements, and at most `most` tensors at once.
    GpuTensors(int gpu, std::size_t elems, std::size_t most);

    // Where the next update writes: ascending tensors, which stay until another call or the end of
    // the last update. Nobody reads their old values once `unused` (a cudaEvent_t) is over. Then
    // `are_written`, in GPU memory, says whether the client has changed any since the last update;
    // null: nobody knows.
    void use(const std::vector<GpuTensor>& tensors, CUevent_st* unused,
             const bool* are_written = nullptr);

    // Whether all elements of the tiles are here, or padding.
    bool cover(std::size_t first_tile, std::size_t tiles) const;
    CUevent_st* unused() const { return unused_; }
    const bool* are_written() const { return are_written_; }

    // The update of these tiles, in a stream that waits for unused(), writes their parameters here.
    // Any thread may call, for different tiles. Requires that the tensors cover() them.
    void take(GpuTiles& tiles);
    // The vector has all newest parameters, or will get those of an update.
    void forget();
    // Whether the tile's newest parameters are here, once the update has delivered them.
    bool have(std::size_t tile) const { return is_here_.at(tile); }
    bool have_any() const;

private:
    void leave_out(std::size_t begin, std::size_t end);
    // Returns the tensors that have elements of these tiles. The list is in GPU memory.
    std::span<const GpuTensor> of(std::size_t first_tile, std::size_t tiles) const;

    int gpu_;
    std::size_t elems_;
    std::vector<GpuTensor> tensors_;
    std::vector<bool> is_covered_;            // by tile
    std::vector<std::atomic<bool>> is_here_;  // by tile
    CUevent_st* unused_ = nullptr;
    const bool* are_written_ = nullptr;
    memory::GpuBuffer on_gpu_;
};

}  // namespace nearstep::csd
