// Gradients on the GPU: blocks are cut into tiles and encoded there, and only payloads come to the
// host.
#pragma once

#include "codec/gpu_codec.hpp"
#include "memory/gpu.hpp"
#include "mpi/exchange/routes.hpp"
#include "mpi/nccl/group.hpp"
#include "offload/gpu_group_sum.hpp"
#include "offload/gradient_assembly.hpp"
#include "shard/partition.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace nearstep::offload {

struct GpuGradientSettings {
    int gpu = 0;
    std::vector<ElementRange> blocks;      // adjacent, in forward order, from 0
    std::vector<exchange::Route> routes;   // this rank's, for complete_tiles() of each block
    std::size_t most_payload_bytes = 0;    // of all codecs of begin_step()
    Dtype dtype = Dtype::bf16;             // gradients are rounded to it before encoding
    nccl::Group* group = nullptr;          // sums gradients before encoding; null: this rank alone
    nccl::Group* payload_ranks = nullptr;  // all ranks; null: payloads travel through host memory
    CUstream_st* stream = nullptr;         // gradients are written in its order
    bool squares = false;  // squares() is wanted; payloads are of all tiles of a block, in order
};

// Encodes this rank's gradient, or its group's sum: then each rank of the group encodes its slice.
// Payloads come to the host of the rank that made them or, with payload_ranks, of the rank that
// owns their tiles. Gradients are written, cut and encoded in the order of one stream; exchanges
// between GPUs, the encoding of sums and copies to the host have streams of their own. Only
// payloads() waits. Use from one thread.
class GpuGradients {
public:
    // Allocates memory for the largest block. The groups and the stream outlive this object.
    explicit GpuGradients(GpuGradientSettings settings);

    // Rank counts, and the payloads per tile with payload_ranks; 0: there is no such group.
    struct Ranks {
        int in_group = 1;
        int in_all = 0;
        int payloads = 0;
    };
    // GPU memory that the constructor allocates if all ranks have equal slices, but for squares().
    static std::size_t gpu_bytes(std::span<const ElementRange> blocks,
                                 std::size_t most_payload_bytes, const Ranks& ranks, Dtype dtype);

    // Whether payloads travel between GPUs to the tiles' owners.
    bool are_brought() const { return settings_.payload_ranks != nullptr; }
    const exchange::Route& route(std::size_t block) const { return settings_.routes[block]; }

    // `random_key` belongs to the step and this source. `codec` outlives the step.
    void begin_step(const codec::Codec& codec, std::uint64_t random_key);

    // Returns the GPU memory for the block's gradient in fp32. Blocks come last first in every
    // step.
    std::span<float> space(std::size_t block);

    // Writes the gradient there, if it has parts.
    void take(std::size_t block, const shard::Gradient& gradient);

    // Encodes complete_tiles() of the block taken last and starts the payloads'
    // transfer to the host. Collective over the groups, if any.
    void encode(std::size_t block);

    // The block's payloads: those of its route's `sliced` or, if are_brought(), of its `received`.
    // Waits for them. `block` is one of the last two encoded, whose payloads stay until the next
    // but one is encoded.
    std::span<const std::byte> payloads(std::size_t block);
    // Returns for each of these payloads the sum of squares of the values that it decodes to, see
    // codec::square_on_gpu(); empty unless wanted. Call it after payloads() of the block.
    std::span<const double> squares(std::size_t block) const;

private:
    // The payloads of one block in transfer.
    struct Batch {
        std::optional<std::size_t> block = std::nullopt;
        memory::GpuBuffer on_gpu;
        memory::GpuBuffer received;  // from other GPUs, by rank
        memory::PinnedBuffer on_host;
        memory::GpuBuffer squares;
        memory::PinnedBuffer squares_on_host;
        memory::Event encoded;
        memory::Event exchanged;
        memory::Event arrived;
    };

    void carry(std::size_t from, std::size_t count);
    void encode_tiles(std::size_t block, const float* gradient, Batch& batch);
    void bring(std::size_t block, Batch& batch);
    const Batch& batch_of(std::size_t block) const;

    GpuGradientSettings settings_;
    std::optional<GpuGroupSum> sum_;       // with a group
    const codec::Codec* codec_ = nullptr;  // of the step
    std::uint64_t random_key_ = 0;
    memory::Stream compute_;
    memory::Stream copies_;
    std::optional<memory::Stream> exchanges_;  // with payload_ranks
    memory::GpuBuffer order_;                  // Route::sent of all blocks, with payload_ranks
    std::vector<std::size_t> starts_;          // of each block in order_
    memory::GpuBuffer values_;                 // from the start of the block's first tile
    memory::GpuBuffer carried_;
    std::size_t carried_elems_ = 0;
    std::array<Batch, 2> batches_;
    std::size_t next_batch_ = 0;
};

}  // namespace nearstep::offload
