#include "csd/engine.hpp"

namespace nearstep::csd {

void update(const Engine& engine, const StepScalars& scalars, const GroupMap& groups,
            std::size_t element, const UpdateRun& run) {
    if (run.count == 0) {
        return;
    }
    const auto runs = groups.runs_in(element, element + run.count);
    const std::size_t first = runs.front().group;
    if (runs.size() == 1 && !scalars.is_skipped.at(first)) {
        engine.update(scalars.of_group.at(first), run);
    } else {
        engine.update_groups(scalars, runs.data(), element, run);
    }
}

}  // namespace nearstep::csd
