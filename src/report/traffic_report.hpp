// The traffic of a run on each link, beside the paper's methods and the planner's formulas.
#pragma once

#include "report/record.hpp"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace nearstep::report {

// Bytes per parameter and step of each link: host_link {state_read, state_write, gradients,
// gradients_read, gradients_write, parameters}, device_internal {read, write}, gpu_link
// {state_read, state_write}, network and node {gradients, parameters}.
nlohmann::json links_json(const std::vector<StepReport>& steps, std::size_t parameters);

// Bytes on the links that devices and nodes share, over all steps: {measured, zero_infinity,
// smart_update, smart_comp_2_percent}, each with host_link (both directions), network and total.
nlohmann::json shared_links_json(const RunRecord& record);

// The planner's volumes for the run's placement, of all nodes, with tiles counted whole: {host_link
// {gradients, parameters}, device_internal {read, write}, network {gradients, parameters}}. Null if
// there is no formula: in mode base, in a warm-up, and if nodes have unequal ranks.
nlohmann::json formula_json(const RunRecord& record);

// Form of delta -> {tile_share, bytes_per_parameter}; null without gather.codec = "delta".
nlohmann::json deltas_json(const std::vector<StepReport>& steps, std::size_t parameters);
// "parameters by deltas: 0.301 bytes per parameter and step; dense 0 % of the tiles with 0, ...";
// empty without them.
std::string describe_deltas(const RunRecord& record);

// One line per record: bytes per step on the host link in units of M = 2 bytes per parameter,
// beside the paper's Table I; bytes per parameter on other links; shared links beside the paper's
// methods; and beside the formulas of the placement. All records have the same number of nodes.
std::string traffic_table(const std::vector<RunRecord>& records);

}  // namespace nearstep::report
