// State as the engines read it, and the arguments of the update's kernel on a GPU. The GPU's
// compiler reads this, too.
#pragma once

#include "arith/state_lane.hpp"
#include "arith/update_lane.hpp"
#include "base/dtype.hpp"
#include "codec/kernel_form.hpp"

#include <cstddef>
#include <cstdint>

namespace nearstep::csd {

using arith::StateFormat;
using arith::UpdateScalars;

// Pointers to the stored state of consecutive elements, starting at a multiple of kBlockElems. The
// format determines the types. Scales are null without 8-bit moments.
struct StatePointers {
    void* master = nullptr;   // float, or bf16 with compact
    void* moment1 = nullptr;  // float, bf16 or std::int8_t
    void* moment2 = nullptr;  // float, bf16 or std::uint8_t
    float* scale1 = nullptr;  // one per block
    float* scale2 = nullptr;
};

// Elements [begin, end) of the parameter vector, side by side in the vector's format.
struct GpuTensor {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::byte* memory = nullptr;
    friend bool operator==(const GpuTensor&, const GpuTensor&) = default;
};

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

// Threads of a block of the kernel; each updates eight neighbours.
constexpr unsigned kUpdateThreads = 256;

}  // namespace nearstep::csd
