// Gradients of blocks that do not come last block first, or in several parts: they wait here until
// it is their turn.
#pragma once

#include "memory/gpu.hpp"
#include "shard/partition.hpp"

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace nearstep::engine {

// Of one rank; not collective. Takes memory for those blocks alone that once had to wait.
class HeldGradients {
public:
    // `stream`: that gradients in the GPU's memory are written in; nullopt: they are on the host.
    HeldGradients(std::span<const shard::ElementRange> blocks,
                  std::optional<memory::Stream> stream);

    // No block of the step has come.
    void begin_step();

    // The block whose turn it is; nullopt: all went.
    std::optional<std::size_t> next() const;
    bool is_held(std::size_t block) const { return blocks_[block].is_held; }
    bool is_complete(std::size_t block) const { return blocks_[block].is_complete; }

    // Where the block's gradient waits from here on.
    std::span<float> hold(std::size_t block);
    // Adds a part to what waits; the first part is the sum so far. On the host only.
    void add(std::size_t block, std::span<const float> part);
    // Nothing more comes of the block.
    void complete(std::size_t block);
    // Copies what waits of the block whose turn it is to where it goes, if it waits.
    void release(std::span<float> to);

private:
    struct Block {
        std::size_t elems = 0;
        bool is_held = false;
        bool is_complete = false;
        std::vector<float> on_host;
        memory::GpuBuffer on_gpu;
    };

    std::optional<memory::Stream> stream_;
    std::vector<Block> blocks_;
    std::size_t left_ = 0;  // the blocks before this one are still to go
};

}  // namespace nearstep::engine
