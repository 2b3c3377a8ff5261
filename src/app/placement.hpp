// Runs the planner at the start of a run.
#pragma once

#include "config/load.hpp"
#include "mpi/communicator.hpp"
#include "plan/calibration.hpp"
#include "plan/choice.hpp"

#include <string>

namespace nearstep::app {

plan::ModelSize size_of(const config::ModelSettings& settings);

// Removes from the space what `nearstep train` does not train, and all but what the settings say of
// placement, activations and sums at the owner. "auto" removes nothing. Throws ConfigError where
// they name groups that the problem's GPUs cannot form.
void keep_to_program(const config::RunSettings& run, const plan::Problem& problem,
                     plan::Space& space);

// The tiers that the settings ask for; GPU memory survives nothing, and "auto" takes none of it if
// every step is durable.
config::Tiers tiers_of_run(const config::CsdSettings& csd);

struct PlannedRun {
    config::RunSettings run;
    std::string line;  // the planner's choice, for the head of the run; empty: it was not asked
    plan::Calibration calibration;  // from plan.calibration
};

// The run of the sources. Where a placement or a tier is "auto", the planner chooses among those
// that training supports on these ranks, if the site has what a plan needs; else the default
// applies. The result is the same on all ranks. Collective; throws ConfigError.
PlannedRun place_by_plan(const mpi::Communicator& world, const config::Sources& sources);

}  // namespace nearstep::app
