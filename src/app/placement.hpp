// The planner at the start of a run.
#pragma once

#include "config/load.hpp"
#include "mpi/communicator.hpp"
#include "plan/calibration.hpp"
#include "plan/choice.hpp"

#include <string>

namespace nearstep::app {

plan::ModelSize size_of(const config::ModelSettings& settings);

// Leaves of each mesh the one that the settings name, where they name one and not "auto".
void keep_asked_placements(const config::PlacementSettings& placement, const plan::Problem& problem,
                           plan::Space& space);

struct PlannedRun {
    config::Run run;
    std::string line;  // what the planner chose, for the head of the run; empty: it was not asked
    plan::Calibration calibration;  // of plan.calibration
};

// The run of the sources. Where a placement is "auto" and the site says what a plan needs, it is
// the planner's choice for these ranks among those that training supports; without that, the
// default. The same on all ranks. Collective; throws ConfigError.
PlannedRun place_by_plan(const mpi::Communicator& world, const config::Sources& sources);

}  // namespace nearstep::app
