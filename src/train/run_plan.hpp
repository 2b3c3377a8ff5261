// A run in the planner's terms, to set formulas beside its measurements.
#pragma once

#include "plan/choice.hpp"
#include "plan/problem.hpp"
#include "train/summary.hpp"

namespace nearstep::train {

struct RunPlan {
    plan::Problem problem;
    plan::Choice choice;
};

// Of the site, only the numbers of GPUs and devices of a node are set, and the size of deltas.
RunPlan run_plan_of(const RunRecord& record);

}  // namespace nearstep::train
