// Gradients on the GPU: blocks are cut into tiles and encoded there, and only payloads come to the
// host.
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

// A group of ranks whose gradients are summed before they are encoded.
struct GradientGroup {
    nccl::Group* ranks = nullptr;  // outlives the user
    std::vector<Slices> blocks;    // of complete_tiles() of each block
};

// Ranks that exchange payloads between GPUs.
struct PayloadGroup {
    nccl::Group* ranks = nullptr;       // outlives the user
    std::vector<PayloadRoutes> blocks;  // this rank's, for complete_tiles() of each block
};

// Encodes this rank's gradient, or its group's sum: then each rank of the group encodes its slice.
// Payloads come to the host of the rank that made them or, with a PayloadGroup, of the rank that
// takes them. Gradients are written, cut and encoded in the order of one stream; exchanges between
// GPUs, the encoding of sums and copies to the host have streams of their own. Only payload() and
// arrived() wait. Use from one thread.
class GpuGradients {
public:
    // `blocks` are adjacent, in forward order, from 0; memory is allocated for the largest.
    // `most_payload_bytes` covers all codecs of begin_step(). Gradients are rounded to `dtype`
    // before encoding. `stream`: gradients are written in its order; it outlives this object.
    GpuGradients(int gpu, std::vector<ElementRange> blocks, std::size_t most_payload_bytes,
                 Dtype dtype, std::optional<GradientGroup> group = std::nullopt,
                 std::optional<PayloadGroup> payloads = std::nullopt,
                 CUstream_st* stream = nullptr);

    // Rank counts, and the payloads per tile of a PayloadGroup; 0: there is no such group.
    struct Ranks {
        int in_group = 1;
        int in_all = 0;
        int payloads = 0;
    };
    // GPU memory that the constructor allocates if all ranks have equal slices.
    static std::size_t gpu_bytes(std::span<const ElementRange> blocks,
                                 std::size_t most_payload_bytes, const Ranks& ranks, Dtype dtype);

    // Whether payloads travel between GPUs to the ranks that take them. Then use arrived(), else
    // payload().
    bool are_brought() const { return exchange_.has_value(); }

    // `random_key` belongs to the step and this source. `codec` outlives the step.
    void begin_step(const codec::Codec& codec, std::uint64_t random_key);

    // Where to write the block's gradient: fp32, on the GPU. Blocks come last first in every step.
    std::span<float> space(std::size_t block);

    // Encodes complete_tiles() of the block of the last space() call and starts the payloads'
    // transfer to the host. Payloads of older blocks than the previous one are lost. Collective
    // over the groups, if any.
    void encode(std::size_t block);

    // This rank's payload of a tile in its slice, from one of the last two encoded blocks. Waits
    // for it.
    std::span<const std::byte> payload(std::size_t tile);

    // The same for a group's payload of a tile that this rank takes.
    std::span<const std::byte> arrived(std::size_t tile, int group);

private:
    // The payloads of one block in transfer.
    struct Batch {
        std::size_t block = 0;
        shard::TileRange tiles;
        memory::GpuBuffer on_gpu;
        memory::GpuBuffer came;  // from other GPUs
        memory::PinnedBuffer on_host;
        memory::Event encoded;
        memory::Event exchanged;
        memory::Event arrived;
        bool is_here = false;  // `arrived` was waited for
    };

    void carry(std::size_t from, std::size_t count);
    std::size_t encode_tiles(std::size_t block, const float* gradient, Batch& batch);
    void bring(Batch& batch, std::span<const std::byte> made);
    void wait_for(Batch& batch);
    Batch& batch_of(std::size_t tile);
    std::size_t place_of(std::size_t tile, const Batch& batch) const;

    std::vector<ElementRange> blocks_;
    Dtype dtype_;
    std::optional<GpuGroupSum> sum_;              // with a GradientGroup
    std::optional<GpuPayloadExchange> exchange_;  // with a PayloadGroup
    const codec::Codec* codec_ = nullptr;         // of the step
    std::uint64_t random_key_ = 0;
    memory::Stream compute_;
    memory::Stream copies_;
    memory::GpuBuffer values_;  // from the start of the block's first tile
    memory::GpuBuffer carried_;
    std::size_t carried_elems_ = 0;
    std::array<Batch, 2> batches_;
    std::size_t next_batch_ = 0;
};

}  // namespace nearstep::offload
