// The codecs' loops, compiled for several vector instruction sets and chosen at run time.
#pragma once

#include "arith/delta_lane.hpp"
#include "arith/gradient_lane.hpp"
#include "base/dtype.hpp"
#include "codec/kernel_form.hpp"
#include "shard/tile.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace nearstep::codec {

// Bytes behind the end of an array that kernels of deltas may read or overwrite.
constexpr std::size_t kDeltaSlackBytes = 64;

// 64-bit words of a bitmap with one bit per parameter of a tile.
constexpr std::size_t kBitmapWords = shard::kTileElems / 64;

struct BlockCoding {
    arith::GradientCodec codec = arith::GradientCodec::q8;
    arith::Rounding rounding = arith::Rounding::nearest;
};

// All variants give the same bits, except in NaN payloads. Stateless; any thread may call. Arrays
// of one call do not overlap and are aligned for their elements.
struct Kernels {
    const char* name;

    // Convert `count` elements between fp32 and `dtype`.
    void (*narrow)(const float* from, Dtype dtype, void* to, std::size_t count);
    void (*widen)(Dtype dtype, const void* from, float* to, std::size_t count);
    void (*add_widened)(Dtype dtype, const void* from, float* sum, std::size_t count);

    void (*add)(const float* from, float* sum, std::size_t count);

    // Adds the squares to kSquareSums sums: the square of values[i] to sums[i % kSquareSums].
    void (*add_squares)(const float* values, double* sums, std::size_t count);

    // Encodes one piece, which starts at element `first` of its tile, into the codes and scales of
    // docs/formats/gradient-payload.md. `key`: the tile's key, for stochastic rounding.
    void (*encode_piece)(BlockCoding coding, const float* values, arith::TileKey key,
                         std::uint32_t first, std::uint8_t* codes, std::uint16_t* scales);
    // sum[i] += decoded[i] for kPieceElems elements.
    void (*decode_add_piece)(arith::GradientCodec codec, const std::uint8_t* codes,
                             const std::uint16_t* scales, float* sum);

    // Sets bit i % 64 of marks[i / 64] if the bits of |values[i]| are at least `least`, else clears
    // it. `count`: a multiple of 64.
    void (*mark)(const float* values, std::uint32_t least, std::uint64_t* marks, std::size_t count);

    // The functions below are for deltas. Arrays hold a tile's elements or kBitmapWords words.

    // Sets a bit in `plus` for each parameter that grew by 1, in `minus` for each that shrank by 1,
    // and in both for any other change.
    arith::DeltaCensus (*compare)(const std::uint16_t* old, const std::uint16_t* fresh,
                                  std::uint64_t* plus, std::uint64_t* minus);

    // Writes the values, or the indices, of the set bits. May also write into the slack.
    void (*pick_values)(const std::uint64_t* bits, const std::uint16_t* values, std::uint16_t* out);
    void (*pick_indices)(const std::uint64_t* bits, std::uint16_t* out);

    // Packs the bits of `bits` where `mask` is set; pads the last word with zeros.
    void (*pack)(const std::uint64_t* mask, const std::uint64_t* bits, std::uint64_t* out);
    // Undoes pack(); zeros where `mask` is not set.
    void (*unpack)(const std::uint64_t* mask, const std::uint64_t* packed, std::uint64_t* bits);

    // Counts the bits that are set in both.
    std::size_t (*count_both)(const std::uint64_t* one, const std::uint64_t* other);

    // Undoes compare(): `values` has one entry per bit set in both bitmaps, then slack.
    void (*apply)(const std::uint64_t* plus, const std::uint64_t* minus,
                  const std::uint16_t* values, std::uint16_t* target);
};

// The variants are constants. They are data, not functions: naming one runs no code of its
// instruction set. The variants with vectors are in builds for x86 only.
extern const Kernels scalar_kernels;
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;

// The variants this CPU can run, slowest first: "scalar", "avx2", "avx512".
const std::vector<Kernels>& kernels();

inline const Kernels& best_kernels() { return kernels().back(); }

}  // namespace nearstep::codec
