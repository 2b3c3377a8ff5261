// Turns tiles of gradients into large writes to storage that proceed while more tiles arrive.
#pragma once

#include "csd/state_layout.hpp"
#include "memory/buffer.hpp"
#include "store/ticket.hpp"
#include "store/volume.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace nearstep::csd {

// One thread calls. A tile that follows the last one in storage joins its write. The volume
// outlives this.
class GradientStaging {
public:
    explicit GradientStaging(store::Volume& volume);

    // `tile`: kTileElems values, free on return. Rethrows the error of an earlier write.
    void put(std::span<const float> tile, std::int64_t offset);

    // Blocks until every tile is in storage.
    void finish();

private:
    static constexpr std::size_t kRuns = 4;
    static constexpr std::size_t kRunBytes = 8 * kTileBytes;

    // Tiles that are contiguous in storage and are written as one.
    struct Run {
        std::span<std::byte> memory;
        std::int64_t offset = 0;
        std::size_t bytes = 0;
        store::Ticket writing;
    };

    void write_current();

    store::Volume* volume_;
    memory::Buffer memory_;
    std::array<Run, kRuns> runs_;
    std::size_t current_ = 0;
};

}  // namespace nearstep::csd
