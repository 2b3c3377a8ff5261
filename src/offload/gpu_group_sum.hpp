// Adds up the gradients of ranks that own a GPU each, from GPU to GPU.
#pragma once

#include "base/dtype.hpp"
#include "codec/gpu_codec.hpp"
#include "memory/gpu.hpp"
#include "mpi/nccl/group.hpp"
#include "offload/slices.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace nearstep::offload {

// A reduce-scatter with an order: each rank sends every other its slice of a block in the
// gradients' format, and adds up its own in rank order in fp32, as exchange::GradientScatter does
// on the host and with its bits. NCCL's own would send as many bytes and round bf16 at every
// addition, in an order of its choice.
class GpuGroupSum {
public:
    // A rank's slice of a block: fp32 values of its tiles, and the tiles' places in the block.
    struct Slice {
        std::size_t tiles = 0;
        const float* values = nullptr;
        const std::uint32_t* places = nullptr;
    };

    // `blocks`: the same on all ranks of the group, whose ranks are the slices' members. Allocates
    // for the largest. `dtype`: what gradients travel in. The group outlives this.
    GpuGroupSum(nccl::Group& group, std::vector<Slices> blocks, Dtype dtype);

    // `gradient`: the block's tiles, fp32, as `compute` leaves them; it may write there again what
    // comes behind. The result is in the GPU's memory in the order of stream(), until the next
    // call. Collective over the group.
    Slice add_up(std::size_t block, const float* gradient, const memory::Stream& compute);

    const memory::Stream& stream() const { return stream_; }

    // This rank's tiles of the block, by their places in it, ascending.
    std::span<const std::uint32_t> mine(std::size_t block) const {
        return blocks_[block].of(group_.rank());
    }

    // Waits on the host; throws if the exchange was given up.
    void wait_for(const memory::Event& event) { group_.wait_for(event); }

private:
    nccl::Group& group_;
    std::vector<Slices> blocks_;
    Dtype dtype_;
    codec::GpuCodec dense_;
    memory::Stream stream_{memory::StreamPriority::high};
    memory::GpuBuffer order_;          // of all blocks' slices
    std::vector<std::size_t> starts_;  // of each block's
    memory::GpuBuffer out_;            // the block in the format it travels in, by member
    memory::GpuBuffer in_;             // the others' part of this rank's slice, by member
    memory::GpuBuffer sums_;
    memory::Event narrowed_;
    memory::Event added_;
    std::vector<std::span<const std::byte>> to_;
    std::vector<std::span<std::byte>> from_;
    std::vector<const std::byte*> addends_;
};

}  // namespace nearstep::offload
