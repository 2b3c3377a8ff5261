#include "csd/gradient_staging.hpp"

#include "base/error.hpp"

#include <algorithm>

namespace nearstep::csd {

GradientStaging::GradientStaging(store::Volume& volume)
    : volume_(&volume), memory_(kRuns * kRunBytes) {
    for (std::size_t i = 0; i < kRuns; ++i) {
        runs_.at(i).memory = memory_.span().subspan(i * kRunBytes, kRunBytes);
    }
}

void GradientStaging::put(std::span<const float> tile, std::int64_t offset) {
    expects(tile.size_bytes() == kTileBytes, "a gradient tile is whole");
    const Run& last = runs_.at(current_);
    const bool follows =
        last.bytes < kRunBytes && last.offset + static_cast<std::int64_t>(last.bytes) == offset;
    if (last.bytes > 0 && !follows) {
        write_current();
    }
    Run& run = runs_.at(current_);
    if (run.bytes == 0) {
        run.writing.wait();
        run.offset = offset;
    }
    std::ranges::copy(std::as_bytes(tile),
                      run.memory.begin() + static_cast<std::ptrdiff_t>(run.bytes));
    run.bytes += kTileBytes;
}

void GradientStaging::write_current() {
    Run& run = runs_.at(current_);
    if (run.bytes > 0) {
        run.writing = volume_->write(run.memory.first(run.bytes), run.offset);
        run.bytes = 0;
        current_ = (current_ + 1) % kRuns;
    }
}

void GradientStaging::finish() {
    write_current();
    for (Run& run : runs_) {
        run.writing.wait();
    }
}

}  // namespace nearstep::csd
