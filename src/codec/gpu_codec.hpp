// The gradient codecs on a GPU: tiles in its memory to the payloads of codec.hpp, bit for bit, and
// back. docs/gradient-payload.md has the formats.
#pragma once

#include "codec/codec.hpp"
#include "memory/gpu.hpp"

#include <cstddef>
#include <cstdint>

namespace nearstep::codec {

// Of each tile's sum of squares, which is that of these in their order.
constexpr std::size_t kSquareParts = 16;

// All addresses are of the GPU's memory, aligned to 16 bytes where not said otherwise, and do not
// overlap.
struct GpuEncoding {
    std::size_t tiles = 0;

    // tiles x kTileElems values, padding zero, of fp32 or bf16. Values of fp32 are first rounded to
    // `rounding`, as they are on their way through a group of ranks.
    const void* gradient = nullptr;
    Dtype gradient_dtype = Dtype::fp32;
    Dtype rounding = Dtype::fp32;

    // What the last encoding lost, added first, and what this one loses, tile by tile as the
    // gradient; null without error feedback.
    const float* residual = nullptr;
    float* next_residual = nullptr;

    // Payload i is of tile order[i] of these; null: of tile i.
    const std::uint32_t* order = nullptr;

    // tiles x payload_bytes().
    std::byte* payloads = nullptr;

    // Of what is encoded, residual included, by tile: kSquareParts sums in double, in an order of
    // the GPU's that is always the same. Not finite if any value is not. Null: not wanted.
    double* squares = nullptr;

    // For stochastic rounding: the key of tile i is arith::tile_key(random_key, first_tile +
    // places[i]); null: + i.
    std::uint64_t random_key = 0;
    std::uint64_t first_tile = 0;
    const std::uint32_t* places = nullptr;
};

enum class Onto;  // of gpu_kernels.hpp

// Stateless after construction; any thread that uses the GPU may call. Calls return at once: the
// work is done in the stream's order. NaNs of payloads that come out of a sum may have other bits
// than the CPU's.
class GpuCodec {
public:
    // As make_codec().
    explicit GpuCodec(const CodecSettings& settings);

    std::size_t payload_bytes() const { return payload_bytes_; }

    // One pass over the gradient.
    void encode(const GpuEncoding& encoding, const memory::Stream& stream) const;

    // Adds `tiles` payloads to as many tiles of fp32 values.
    void decode_add(const std::byte* payloads, std::size_t tiles, float* sums,
                    const memory::Stream& stream) const;

    // As decode_add() to zeros, whatever was there: half of its traffic.
    void decode(const std::byte* payloads, std::size_t tiles, float* values,
                const memory::Stream& stream) const;

private:
    enum class Kind { dense, topk, block };

    void decode_onto(Onto onto, const std::byte* payloads, std::size_t tiles, float* sums,
                     const memory::Stream& stream) const;

    Kind kind_ = Kind::dense;
    Dtype dtype_;
    BlockCoding coding_;
    std::size_t payload_bytes_;
};

}  // namespace nearstep::codec
