// What a run moved on each link, beside the planner's formulas for its placement.
#pragma once

#include "plan/cost.hpp"
#include "train/summary.hpp"

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <string>
#include <vector>

namespace nearstep::train {

// Of all nodes together, in bytes per parameter and step, tiles counted whole. Nothing where there
// is no formula: in mode base, in a warm-up, and on nodes with unequal ranks.
std::optional<plan::Volumes> formula_volumes(const RunRecord& record);

// The table, a line per record with a formula; empty if there is none.
std::string formula_table(const std::vector<RunRecord>& records);

// {host_link {gradients, parameters}, device_internal {read, write}, network {gradients,
// parameters}}, or null.
nlohmann::json formula_json(const RunRecord& record);

}  // namespace nearstep::train
