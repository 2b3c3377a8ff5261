// Sums gradients between the GPUs of ranks that have one GPU each.
#pragma once

#include "base/dtype.hpp"
#include "codec/gpu_codec.hpp"
#include "memory/gpu.hpp"
#include "mpi/exchange/routes.hpp"
#include "mpi/nccl/group.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace nearstep::offload {

// A reduce-scatter with a fixed order. Each rank sends every other rank its slice of a block in the
// gradients' format, and sums its own slice in rank order in fp32. The bits equal those of
// exchange::GradientScatter on the host. NCCL's reduce-scatter sends as many bytes, but rounds bf16
// at every addition and chooses the order itself.
class GpuGroupSum {
public:
    // A rank's slice of a block: fp32 values of its tiles, and the tiles' indices in the block.
    struct Slice {
        std::size_t tiles = 0;
        const float* values = nullptr;
        const std::uint32_t* places = nullptr;
    };

    // `blocks`: how the tiles of each block are divided among the group's ranks. Allocates for the
    // largest. Gradients travel as `dtype`. The group outlives this.
    GpuGroupSum(nccl::Group& group, std::vector<exchange::ByRank> blocks, Dtype dtype);

    // `gradient`: the block's tiles, fp32, ready in the order of `compute`, which may overwrite
    // them after this call. The result is in GPU memory in the order of stream(), until the next
    // call. Collective over the group.
    Slice add_up(std::size_t block, const float* gradient, const memory::Stream& compute);

    const memory::Stream& stream() const { return stream_; }

    // Waits on the host. Throws if the exchange was aborted.
    void wait_for(const memory::Event& event) { group_.wait_for(event); }

private:
    nccl::Group& group_;
    std::vector<exchange::ByRank> blocks_;
    Dtype dtype_;
    std::unique_ptr<codec::Codec> dense_;
    memory::Stream stream_{memory::StreamPriority::high};
    memory::GpuBuffer order_;          // slices of all blocks
    std::vector<std::size_t> starts_;  // of each block in order_
    memory::GpuBuffer out_;            // the block in the travelling format, by member
    memory::GpuBuffer in_;             // the others' parts of this rank's slice, by member
    memory::GpuBuffer sums_;
    memory::Event narrowed_;
    memory::Event added_;
    std::vector<std::span<const std::byte>> to_;
    std::vector<std::span<std::byte>> from_;
    std::vector<const std::byte*> addends_;
};

}  // namespace nearstep::offload
