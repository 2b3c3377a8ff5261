// Turns tiles of gradients into large writes to storage that proceed while more tiles arrive.
#pragma once

#include "csd/state_layout.hpp"
#include "memory/buffer.hpp"
#include "store/ticket.hpp"
#include "store/volume.hpp"

#include <array>
#include <bitset>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

namespace nearstep::csd {

// Tiles that lie next to each other in storage are written as one, in whatever order they come.
// The volume outlives this.
class GradientStaging {
public:
    // `begin`: where tile 0 lies in the volume.
    GradientStaging(store::Volume& volume, std::int64_t begin);

    // `values`: kTileElems of them, free on return. Any thread; each tile once before finish().
    // Rethrows the error of an earlier write.
    void put(std::size_t tile, std::span<const float> values);

    // Blocks until every tile is in storage; no other call is under way.
    void finish();

private:
    static constexpr std::size_t kRuns = 16;
    static constexpr std::size_t kTilesOfRun = 8;

    // Tiles region x kTilesOfRun and on, of which some are here.
    struct Run {
        std::span<std::byte> memory;
        std::size_t region = 0;
        std::bitset<kTilesOfRun> is_here;
        std::size_t arriving = 0;
        store::Ticket writing;

        bool is_empty() const { return is_here.none() && arriving == 0; }
    };

    Run* find_run(std::size_t region);
    void write(Run& run);

    store::Volume* volume_;
    std::int64_t begin_;
    memory::Buffer memory_;
    std::mutex mutex_;
    std::condition_variable has_arrived_;
    // Of those that are empty or must make room, the next one is that used the longest time ago.
    std::array<Run, kRuns> runs_;
    std::size_t next_ = 0;
};

}  // namespace nearstep::csd
