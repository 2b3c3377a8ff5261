// Gradients that stay on the GPU: blocks are cut into tiles and encoded there, and only payloads
// come to the host.
#pragma once

#include "codec/gpu_codec.hpp"
#include "memory/gpu.hpp"
#include "offload/gpu_group_sum.hpp"
#include "offload/gpu_payload_exchange.hpp"
#include "offload/gradient_assembly.hpp"
#include "shard/partition.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace nearstep::offload {

// A group of ranks whose gradients are added up before they are encoded.
struct GradientGroup {
    nccl::Group* ranks = nullptr;  // outlives who is given it
    std::vector<Slices> blocks;    // of complete_tiles() of each block
};

// Ranks whose payloads go from GPU to GPU.
struct PayloadGroup {
    nccl::Group* ranks = nullptr;       // outlives who is given it
    std::vector<PayloadRoutes> blocks;  // of complete_tiles() of each block, and of this rank
};

// What is encoded is this rank's gradient, or the sum of its group's: then each rank of it encodes
// its slice. The payloads come to the host where they were made, or, with a PayloadGroup, where
// they are taken. Gradients are written, cut and encoded in the order of one stream. What takes
// place between GPUs, the encoding of sums and the copies to the host have streams of their own.
// Only payload() and arrived() wait. Use from one thread.
class GpuGradients {
public:
    // `blocks`: adjacent, in forward order, from 0. Allocates for the largest.
    // `most_payload_bytes`: of the codecs that begin_step() will name. `dtype`: what gradients are
    // rounded to first. `stream`: that gradients are written in; it outlives this.
    GpuGradients(int gpu, std::vector<ElementRange> blocks, std::size_t most_payload_bytes,
                 Dtype dtype, std::optional<GradientGroup> group = std::nullopt,
                 std::optional<PayloadGroup> payloads = std::nullopt,
                 CUstream_st* stream = nullptr);

    // Ranks of a group, and of a PayloadGroup with so many payloads of each tile; 0: there is none.
    struct Ranks {
        int in_group = 1;
        int in_all = 0;
        int payloads = 0;
    };
    // What the constructor allocates of the GPU's memory where ranks have slices alike.
    static std::size_t gpu_bytes(std::span<const ElementRange> blocks,
                                 std::size_t most_payload_bytes, const Ranks& ranks, Dtype dtype);

    // Whether payloads come from GPU to GPU to who takes them: then arrived() has them, else
    // payload().
    bool are_brought() const { return exchange_.has_value(); }

    // `random_key`: of the step and this source.
    void begin_step(const codec::Codec& codec, std::uint64_t random_key);

    // Where the block's gradient is to be written, fp32, on the GPU. Blocks come last first; then
    // from the last again.
    std::span<float> space(std::size_t block);

    // Encodes complete_tiles() of the block that space() was last called for, and starts their
    // payloads' way to the host. Those of the block before the last that was encoded are lost.
    // Collective over the groups, if there are any.
    void encode(std::size_t block);

    // Of a tile of one of the last two blocks that were encoded, and of this rank's slice of it;
    // waits until it is here.
    std::span<const std::byte> payload(std::size_t tile);

    // The same of what a group made of a tile that this rank takes.
    std::span<const std::byte> arrived(std::size_t tile, int group);

private:
    // The payloads of a block on their way.
    struct Batch {
        std::size_t block = 0;
        shard::TileRange tiles;
        memory::GpuBuffer on_gpu;
        memory::GpuBuffer came;  // from other GPUs
        memory::PinnedBuffer on_host;
        memory::Event encoded;
        memory::Event exchanged;
        memory::Event arrived;
    };

    void carry(std::size_t from, std::size_t count);
    std::size_t encode_tiles(std::size_t block, const float* gradient, Batch& batch);
    void bring(Batch& batch, std::span<const std::byte> made);
    void wait_for(const Batch& batch);
    Batch& batch_of(std::size_t tile);
    std::size_t place_of(std::size_t tile, const Batch& batch) const;

    std::vector<ElementRange> blocks_;
    Dtype dtype_;
    std::optional<GpuGroupSum> sum_;              // of a group
    std::optional<GpuPayloadExchange> exchange_;  // of a PayloadGroup
    std::optional<codec::GpuCodec> codec_;
    std::uint64_t random_key_ = 0;
    memory::Stream compute_;
    memory::Stream copies_;
    memory::GpuBuffer values_;  // from the tile that the block begins in
    memory::GpuBuffer carried_;
    std::size_t carried_elems_ = 0;
    std::array<Batch, 2> batches_;
    std::size_t next_batch_ = 0;
};

}  // namespace nearstep::offload
