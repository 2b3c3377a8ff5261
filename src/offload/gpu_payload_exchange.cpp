#include "offload/gpu_payload_exchange.hpp"

#include "base/error.hpp"

#include <utility>

namespace nearstep::offload {

GpuPayloadExchange::GpuPayloadExchange(nccl::Group& ranks, std::vector<PayloadRoutes> blocks)
    : ranks_(ranks),
      blocks_(std::move(blocks)),
      to_(static_cast<std::size_t>(ranks.size())),
      from_(to_.size()) {
    std::vector<std::uint32_t> order;
    for (const PayloadRoutes& routes : blocks_) {
        starts_.push_back(order.size());
        order.insert(order.end(), routes.order().begin(), routes.order().end());
    }
    order_ = memory::GpuBuffer(order.size() * sizeof(std::uint32_t));
    copy_to_gpu(order_.span(), std::as_bytes(std::span(order)), stream_);
    stream_.wait();
}

void GpuPayloadExchange::exchange(std::size_t block, std::span<const std::byte> made,
                                  std::span<std::byte> came, std::size_t payload_bytes,
                                  const memory::Event& encoded) {
    const PayloadRoutes& routes = blocks_[block];
    expects(made.size() == routes.order().size() * payload_bytes &&
                came.size() == routes.came() * payload_bytes,
            "there is room for the payloads");
    for (int rank = 0; rank < ranks_.size(); ++rank) {
        if (rank == ranks_.rank()) {
            continue;
        }
        const auto place = static_cast<std::size_t>(rank);
        to_[place] = made.subspan(routes.first_for(rank) * payload_bytes,
                                  routes.count_for(rank) * payload_bytes);
        from_[place] = came.subspan(routes.first_of(rank) * payload_bytes,
                                    routes.count_of(rank) * payload_bytes);
    }
    stream_.wait_for(encoded);
    ranks_.exchange(to_, from_, stream_);
}

}  // namespace nearstep::offload
