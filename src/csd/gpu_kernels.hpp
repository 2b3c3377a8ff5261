// The kernel behind GpuEngine.
#pragma once

#include "arith/state_lane.hpp"
#include "base/dtype.hpp"
#include "codec/codec.hpp"
#include "csd/gpu_tensors.hpp"
#include "csd/update_engine.hpp"

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace nearstep::csd {

// Consecutive tiles of one parameter group. All arrays are in GPU memory or in pinned host memory,
// and aligned to 16 bytes. The new state has the place of the old or none that overlaps it.
struct GpuTiles {
    StateFormat format = StateFormat::fp32;
    StatePointers old;  // of the first tile; the others follow in each array
    StatePointers updated;
    const std::byte* payloads = nullptr;  // of each tile, one per source
    std::size_t payload_stride = 0;       // bytes from one payload to the next
    unsigned sources = 1;
    codec::KernelForm codec;
    std::byte* parameters = nullptr;
    const GpuTensor* tensors = nullptr;  // in GPU memory: take the parameters instead, if given
    std::size_t tensor_count = 0;
    // In GPU memory, with compact state and bf16 tensors: whether these may differ from the old
    // masters, which are read from them else. null: they may.
    const bool* are_written = nullptr;
    Dtype parameter_dtype = Dtype::bf16;
    std::uint64_t random_key = 0;
    std::size_t first_tile = 0;  // in the parameter vector
    std::size_t tiles = 0;
    UpdateScalars scalars;
};

// Thread blocks that keep the GPU's link busy. More would take the GPU from others' work.
constexpr unsigned kThreadBlocks = 48;

// Updates tiles on the GPU, with the same bits as the engines of update_engine.hpp. Returns at
// once; the work runs in stream order. `most`: the largest number of thread blocks.
void update_on_gpu(const GpuTiles& tiles, CUstream_st* stream, unsigned most = kThreadBlocks);

}  // namespace nearstep::csd
