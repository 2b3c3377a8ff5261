// The loops of the codecs, compiled for several vector instruction sets; chosen at run time.
#pragma once

#include "arith/gradient_lane.hpp"
#include "base/dtype.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace nearstep::codec {

struct BlockCoding {
    arith::BlockFormat format = arith::BlockFormat::q8;
    arith::Rounding rounding = arith::Rounding::nearest;
};

// All variants give the same bits (those of NaN payloads excepted). Stateless; any thread may call.
// Arrays of one call do not overlap and are aligned for their elements.
struct Kernels {
    const char* name;

    // Between fp32 and `count` elements of `dtype`.
    void (*narrow)(const float* from, Dtype dtype, void* to, std::size_t count);
    void (*widen)(Dtype dtype, const void* from, float* to, std::size_t count);
    void (*add_widened)(Dtype dtype, const void* from, float* sum, std::size_t count);

    void (*add)(const float* from, float* sum, std::size_t count);

    // One piece, whose first element is number `first` of its tile: codes and scales as
    // docs/gradient-payload.md has them. `key`: of the tile, for stochastic rounding.
    void (*encode_piece)(BlockCoding coding, const float* values, arith::TileKey key,
                         std::uint32_t first, std::uint8_t* codes, std::uint16_t* scales);
    // sum[i] += decoded[i], kPieceElems of them.
    void (*decode_add_piece)(arith::BlockFormat format, const std::uint8_t* codes,
                             const std::uint16_t* scales, float* sum);

    // Bit i % 64 of marks[i / 64] becomes 1 where the bits of |values[i]| are at least `least`.
    // `count`: a multiple of 64.
    void (*mark)(const float* values, std::uint32_t least, std::uint64_t* marks, std::size_t count);
};

// Those that this CPU can run, the slowest first: "scalar", "avx2", "avx512".
const std::vector<Kernels>& kernels();

// The fastest of them.
inline const Kernels& best_kernels() { return kernels().back(); }

}  // namespace nearstep::codec
