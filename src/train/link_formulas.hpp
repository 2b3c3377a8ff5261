// What a run moved on each link, beside the planner's formulas for its placement.
#pragma once

#include "plan/cost.hpp"
#include "train/summary.hpp"

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <string>
#include <vector>

namespace nearstep::train {

// Of all nodes, in bytes per parameter and step, with tiles counted whole. Nullopt if there is no
// formula: in mode base, in a warm-up, and if nodes have unequal ranks.
std::optional<plan::Volumes> formula_volumes(const RunRecord& record);

// A table with one line per record that has a formula; empty if none has.
std::string formula_table(const std::vector<RunRecord>& records);

// {host_link {gradients, parameters}, device_internal {read, write}, network {gradients,
// parameters}}, or null.
nlohmann::json formula_json(const RunRecord& record);

}  // namespace nearstep::train
