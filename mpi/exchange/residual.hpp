// What encoding lost of the gradients that this rank slices, to be added to the next step's.
#pragma once

#include "memory/buffer.hpp"
#include "shard/partition.hpp"

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace nearstep::exchange {

// Two fp32 values per element: what counts, and what a step leaves, which counts once the step is
// accepted. Allocated at start, zero.
class Residual {
public:
    // `tiles`: ascending.
    explicit Residual(std::vector<std::size_t> tiles);

    const std::vector<std::size_t>& tiles() const { return tiles_; }

    // kTileElems values; the tile is one of tiles().
    std::span<float> of(std::size_t tile) { return part(current_, tile); }
    std::span<float> next(std::size_t tile) { return part(next_, tile); }

    // What next() holds counts; all of it was written.
    void accept() { std::swap(current_, next_); }

    // Multiplies what counts: the gradients' scale has changed.
    void scale(float factor);

private:
    std::span<float> part(memory::Buffer& buffer, std::size_t tile);

    std::vector<std::size_t> tiles_;
    memory::Buffer current_;
    memory::Buffer next_;
};

}  // namespace nearstep::exchange
