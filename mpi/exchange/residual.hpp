// The error-feedback residual of this rank's tiles: what encoding lost, added to the next
// gradients.
#pragma once

#include "memory/buffer.hpp"
#include "shard/partition.hpp"

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace nearstep::exchange {

// Two fp32 values per element: the current residual, and what a step leaves, which becomes current
// once the step is accepted. Allocated at start, zero.
class Residual {
public:
    // `tiles`: ascending.
    explicit Residual(std::vector<std::size_t> tiles);

    const std::vector<std::size_t>& tiles() const { return tiles_; }

    // kTileElems values; `tile` must be in tiles().
    std::span<float> of(std::size_t tile) { return part(current_, tile); }
    std::span<float> next(std::size_t tile) { return part(next_, tile); }

    // Makes next() the current residual; every value of next() must have been written.
    void accept() { std::swap(current_, next_); }

    // Multiplies the current residual when the gradients' scale changes.
    void scale(float factor);

private:
    std::span<float> part(memory::Buffer& buffer, std::size_t tile);

    std::vector<std::size_t> tiles_;
    memory::Buffer current_;
    memory::Buffer next_;
};

}  // namespace nearstep::exchange
