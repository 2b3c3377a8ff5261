// The kernel behind GpuEngine.
#pragma once

#include "csd/gpu_state.hpp"
#include "memory/gpu.hpp"

namespace nearstep::csd {

// Thread blocks that keep the GPU's link busy. More would take the GPU from others' work.
constexpr unsigned kThreadBlocks = 48;

// Updates tiles on the GPU, with the same bits as the engines of update_engine.hpp. Returns at
// once; the work runs in stream order. `most`: the largest number of thread blocks.
void update_on_gpu(const GpuTiles& tiles, CUstream_st* stream, unsigned most = kThreadBlocks);

}  // namespace nearstep::csd
