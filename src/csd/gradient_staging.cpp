// Writes gradients of tiles to storage in long runs. Used by CpuDevice in mode `base`.
#include "csd/gradient_staging.hpp"

#include "base/error.hpp"

#include <algorithm>

namespace nearstep::csd {

GradientStaging::GradientStaging(store::Volume& volume, std::int64_t begin)
    : volume_(&volume), begin_(begin), memory_(kRuns * kTilesOfRun * kTileBytes) {
    constexpr std::size_t kRunBytes = kTilesOfRun * kTileBytes;
    for (std::size_t i = 0; i < kRuns; ++i) {
        runs_.at(i).memory = memory_.span().subspan(i * kRunBytes, kRunBytes);
    }
}

void GradientStaging::put(std::size_t tile, std::span<const float> values) {
    expects(values.size_bytes() == kTileBytes, "a gradient tile is whole");
    const std::size_t place = tile % kTilesOfRun;
    StagedRun* run = nullptr;
    std::unique_lock lock(mutex_);
    has_arrived_.wait(lock, [&] { return (run = find_run(tile / kTilesOfRun)) != nullptr; });
    expects(!run->is_here[place], "a tile comes once");
    ++run->arriving;
    lock.unlock();
    std::ranges::copy(std::as_bytes(values), run->memory.subspan(place * kTileBytes).begin());
    lock.lock();
    --run->arriving;
    run->is_here.set(place);
    if (run->is_here.all()) {
        write(*run);
    }
    has_arrived_.notify_all();
}

// The run of the region, or one reassigned to it. Null while tiles arrive in all other runs.
GradientStaging::StagedRun* GradientStaging::find_run(std::size_t region) {
    for (StagedRun& run : runs_) {
        if (!run.is_empty() && run.region == region) {
            return &run;
        }
    }
    for (const bool makes_room : {false, true}) {
        for (std::size_t i = 0; i < kRuns; ++i) {
            StagedRun& run = runs_.at((next_ + i) % kRuns);
            if (!run.is_empty() && !(makes_room && run.arriving == 0)) {
                continue;
            }
            write(run);
            run.writing.wait();
            run.region = region;
            next_ = (next_ + i + 1) % kRuns;
            return &run;
        }
    }
    return nullptr;
}

// Starts to write the tiles that have arrived, adjacent ones together.
void GradientStaging::write(StagedRun& run) {
    for (std::size_t first = 0; first < kTilesOfRun;) {
        std::size_t end = first;
        while (end < kTilesOfRun && run.is_here[end]) {
            ++end;
        }
        if (end > first) {
            const std::size_t tile = run.region * kTilesOfRun + first;
            run.writing.add(
                volume_->write(run.memory.subspan(first * kTileBytes, (end - first) * kTileBytes),
                               begin_ + static_cast<std::int64_t>(tile * kTileBytes)));
        }
        first = end + 1;
    }
    run.is_here.reset();
}

void GradientStaging::finish() {
    const std::lock_guard lock(mutex_);
    for (StagedRun& run : runs_) {
        write(run);
    }
    for (StagedRun& run : runs_) {
        run.writing.wait();
    }
}

}  // namespace nearstep::csd
