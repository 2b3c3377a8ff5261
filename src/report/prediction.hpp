// The modelled duration of a step on the site's links, to compare with measurements.
#pragma once

#include "plan/choice.hpp"
#include "plan/problem.hpp"
#include "report/record.hpp"

#include <optional>

namespace nearstep::report {

// A run in the planner's terms. The site has only the numbers of GPUs and devices of a node and the
// size of deltas.
struct RunPlan {
    plan::Problem problem;
    plan::Choice choice;
};
RunPlan run_plan_of(const RunRecord& record);

// `unshaped`: the phases of the same compute without link delays. The model is the planner's
// (plan/cost.hpp); plan/formulas.hpp covers mode base and GPUs on the host link. Rates are the
// site's, replaced by the record's calibration where it has some.
PhaseSeconds predict(const RunRecord& record, const PhaseSeconds& unshaped);

// The expected time of gradients (in `backward`) and update on the links alone. Compute is unknown,
// so `forward` is 0. Empty if the site gives no rate.
std::optional<PhaseSeconds> expect_of_links(const RunRecord& record);

// Bytes that all devices read and write for an update, and the least seconds that takes at the
// rates of shaped links or of calibrated devices; empty without such rates. No network is included.
double expected_storage_bytes(const RunRecord& record);
std::optional<double> least_update_seconds(const RunRecord& record);

}  // namespace nearstep::report
