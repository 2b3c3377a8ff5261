// Sends payloads from the GPUs that encoded them to the GPUs of the tiles' owners.
#pragma once

#include "memory/gpu.hpp"
#include "mpi/nccl/group.hpp"
#include "offload/payload_routes.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace nearstep::offload {

// All sizes follow from the routes, so none is exchanged.
class GpuPayloadExchange {
public:
    // `ranks`: all makers and takers; outlives this. `blocks`: this rank's routes of each block.
    GpuPayloadExchange(nccl::Group& ranks, std::vector<PayloadRoutes> blocks);

    const PayloadRoutes& routes(std::size_t block) const { return blocks_[block]; }
    // order() of the block's routes, in GPU memory.
    const std::uint32_t* order(std::size_t block) {
        return order_.as<std::uint32_t>() + starts_[block];
    }

    // `made`: the block's payloads in order(), ready after `encoded`. `came`: room for payloads
    // from others, placed as in the routes and ready in the order of stream(). Both stay valid
    // until then. Collective: blocks come in the same order on all ranks.
    void exchange(std::size_t block, std::span<const std::byte> made, std::span<std::byte> came,
                  std::size_t payload_bytes, const memory::Event& encoded);

    int rank() const { return ranks_.rank(); }
    const memory::Stream& stream() const { return stream_; }

    // Waits on the host. Throws if the exchange was aborted.
    void wait_for(const memory::Event& event) { ranks_.wait_for(event); }

private:
    nccl::Group& ranks_;
    std::vector<PayloadRoutes> blocks_;
    memory::Stream stream_{memory::StreamPriority::high};
    memory::GpuBuffer order_;          // of all blocks
    std::vector<std::size_t> starts_;  // of each block in order_
    std::vector<std::span<const std::byte>> to_;
    std::vector<std::span<std::byte>> from_;
};

}  // namespace nearstep::offload
