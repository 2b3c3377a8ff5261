// Holds gradients that come out of order (not last block first), in several parts, or in memory of
// the engine's, until their turn.
#pragma once

#include "memory/gpu.hpp"
#include "shard/gradient.hpp"
#include "shard/partition.hpp"

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace nearstep::engine {

// Holds one rank's gradients; not collective. Allocates memory only for blocks that had to wait.
class HeldGradients {
public:
    // `stream`: the one that writes gradients in GPU memory; nullopt: gradients are on the host.
    HeldGradients(std::span<const shard::ElementRange> blocks,
                  std::optional<memory::Stream> stream);

    // Forgets all blocks of the previous step.
    void begin_step();

    // The block whose turn it is; nullopt if all were released.
    std::optional<std::size_t> next() const;
    bool is_held(std::size_t block) const { return blocks_[block].is_held; }
    bool is_complete(std::size_t block) const { return blocks_[block].is_complete; }

    // Memory where the block's gradient waits, in fp32.
    std::span<float> hold(std::size_t block);
    // Copies the block's gradient there. Where `stream` writes.
    void keep(std::size_t block, const shard::Gradient& gradient);
    // Adds a part to what waits; the first part is kept.
    void add(std::size_t block, std::span<const float> part);
    // Call when all parts of the block have come.
    void complete(std::size_t block);
    // Returns what waits of the block, until the block is released; no parts if it is not held.
    shard::Gradient gradient(std::size_t block) const;
    // The block whose turn it is was sent.
    void release();

private:
    struct HeldBlock {
        std::size_t elems = 0;
        bool is_held = false;
        bool is_complete = false;
        std::vector<float> on_host;
        memory::GpuBuffer on_gpu;
        shard::GradientPart part;
    };

    std::optional<memory::Stream> stream_;
    std::vector<HeldBlock> blocks_;
    std::vector<std::vector<float>> spare_;  // memory of blocks that were released
    std::size_t left_ = 0;                   // blocks before this one are not released yet
};

}  // namespace nearstep::engine
