// Combines gradient tiles into large writes to storage while more tiles arrive.
#pragma once

#include "csd/state_layout.hpp"
#include "memory/buffer.hpp"
#include "store/volume.hpp"

#include <array>
#include <bitset>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

namespace nearstep::csd {

// Tiles that are adjacent in storage are written together, in any order of arrival. The volume
// outlives this.
class GradientStaging {
public:
    // `begin` is the offset of tile 0 in the volume.
    GradientStaging(store::Volume& volume, std::int64_t begin);

    // `values` has kTileElems elements and may be reused on return. Any thread may call; each tile
    // comes once before finish(). Rethrows the error of an earlier write.
    void put(std::size_t tile, std::span<const float> values);

    // Returns when every tile is in storage. Not during another call.
    void finish();

private:
    static constexpr std::size_t kRuns = 16;
    static constexpr std::size_t kTilesOfRun = 8;

    // Tiles from region x kTilesOfRun on; some of them have arrived.
    struct StagedRun {
        std::span<std::byte> memory;
        std::size_t region = 0;
        std::bitset<kTilesOfRun> is_here;
        std::size_t arriving = 0;
        Ticket writing;

        bool is_empty() const { return is_here.none() && arriving == 0; }
    };

    StagedRun* find_run(std::size_t region);
    void write(StagedRun& run);

    store::Volume* volume_;
    std::int64_t begin_;
    memory::Buffer memory_;
    std::mutex mutex_;
    std::condition_variable has_arrived_;
    // The search for a free run starts at next_, so that the least recently used one is taken.
    std::array<StagedRun, kRuns> runs_;
    std::size_t next_ = 0;
};

}  // namespace nearstep::csd
