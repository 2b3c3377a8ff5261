// Delays GPU transfers to the rates of a shaped host link. Used by the engine.
#include "engine/route/gpu_traffic.hpp"

#include "base/dtype.hpp"
#include "plan/link_rates.hpp"

namespace nearstep::engine {

GpuTraffic::GpuTraffic(const config::EngineSettings& settings, const Layout& layout,
                       const shaping::NodeLinks* links, int ranks) {
    if (links == nullptr || settings.link.gpu_traffic == config::GpuLinkUse::apart) {
        return;
    }
    for (const shard::ElementRange& block : layout.blocks) {
        const auto bytes = static_cast<double>(block.size() * size_bytes(layout.dtype));
        block_bytes_.push_back(
            static_cast<std::size_t>(plan::gpu_bytes_of_node(settings.link, ranks, bytes) / ranks));
    }
    // GPUs are on the devices' side of the link.
    in_.emplace(links->to_storage(), links->clock());
    out_.emplace(links->to_host(), links->clock());
}

void GpuTraffic::bring_parameters(std::size_t block) {
    if (in_) {
        in_->add(block_bytes_[block]);
    }
}

void GpuTraffic::take_gradients(std::size_t block) {
    if (out_) {
        out_->add(block_bytes_[block]);
    }
}

void GpuTraffic::finish_pass() const {
    if (in_) {
        in_->wait();
        out_->wait();
    }
}

}  // namespace nearstep::engine
