// Emulates this rank's GPU traffic over its node's host link, where the site says that GPU and
// devices share it.
#pragma once

#include "config/engine_settings.hpp"
#include "nearstep/layout.hpp"
#include "shaping/node_links.hpp"

#include <cstddef>
#include <optional>
#include <vector>

namespace nearstep::engine {

// Delays passes over the blocks, and other users of the host link. Parameters cross before their
// block is computed, gradients after it, and a pass ends when all have crossed. No bytes move: this
// emulates a GPU behind the link.
class GpuTraffic {
public:
    // `links` may be null; it outlives this. `ranks` counts this node's.
    GpuTraffic(const config::EngineSettings& settings, const Layout& layout,
               const shaping::NodeLinks* links, int ranks);

    void bring_parameters(std::size_t block);
    void take_gradients(std::size_t block);
    // Blocks until all transfers of the pass are over.
    void finish_pass() const;

private:
    std::vector<std::size_t> block_bytes_;  // of this rank
    std::optional<shaping::TransferQueue> in_;
    std::optional<shaping::TransferQueue> out_;
};

}  // namespace nearstep::engine
