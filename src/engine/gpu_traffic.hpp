// Traffic of this rank's GPU over its node's host link, where the site says that GPU and devices
// share it.
#pragma once

#include "config/engine_settings.hpp"
#include "engine/layout.hpp"
#include "link/node_links.hpp"

#include <cstddef>
#include <optional>
#include <vector>

namespace nearstep::engine {

// Bytes of 16-bit parameters, or dense gradients, that the GPUs of a node move in one pass over all
// blocks, with so many ranks and `vector_bytes` of parameters; 0 if their links are apart.
double gpu_bytes_of_node(const config::LinkSettings& link, int ranks, double vector_bytes);

// Holds passes over the blocks up, and whoever else uses the host link: parameters come in ahead of
// the products of their block, gradients leave behind them, and a pass ends when all have crossed.
// The bytes themselves stay where they are: what is emulated is that the GPU is behind the link.
class GpuTraffic {
public:
    // `links` may be null; outlives this. `ranks`: of this node.
    GpuTraffic(const config::EngineSettings& settings, const Layout& layout,
               const link::NodeLinks* links, int ranks);

    void bring_parameters(std::size_t block);
    void take_gradients(std::size_t block);
    // Blocks until all of the pass are over.
    void finish_pass() const;

private:
    std::vector<std::size_t> block_bytes_;  // of this rank
    std::optional<link::Stream> in_;
    std::optional<link::Stream> out_;
};

}  // namespace nearstep::engine
