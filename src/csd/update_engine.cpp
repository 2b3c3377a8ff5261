// Chooses the update engine for this CPU. Called by devices, the doctor and reports.
#include "csd/update_engine.hpp"

#include "base/instruction_set.hpp"
#include "csd/state_format.hpp"

namespace nearstep::csd {

const std::vector<UpdateEngine>& engines() {
    static const std::vector<UpdateEngine> usable = [] {
        if constexpr (kHasX86Sets) {
            return variants_for(instruction_sets(), scalar_engine, avx2_engine, avx512_engine);
        } else {
            return std::vector{scalar_engine};
        }
    }();
    return usable;
}

void update(const UpdateEngine& engine, const StepScalars& scalars, const GroupMap& groups,
            std::size_t element, const UpdateRun& run) {
    if (run.count == 0) {
        return;
    }
    const auto runs = groups.runs_in(element, element + run.count);
    const std::size_t first = runs.front().group;
    const bool is_one = runs.size() == 1 && !scalars.is_skipped.at(first);
    const arith::UpdateScalars& of_first = scalars.of_group.at(first);
    const bool changes_all =
        is_one && uses_moment1(of_first.optimizer) && uses_moment2(of_first.optimizer);
    UpdateRun here = run;
    if (run.old.master != nullptr && !changes_all) {
        copy_state(run.format, run.old, run.count, run.state);
        here.old = {};
    }
    if (is_one) {
        engine.update(of_first, here);
    } else {
        engine.update_groups(scalars, runs.data(), element, here);
    }
}

}  // namespace nearstep::csd
