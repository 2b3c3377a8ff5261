// What a run moved over links that devices and nodes share, beside the paper's methods.
#pragma once

#include "plan/paper.hpp"
#include "train/summary.hpp"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace nearstep::train {

// Measured over all steps of the run: host links in both directions, and network.
plan::SharedBytes shared_bytes(const RunRecord& record);

// The table: ZeRO-Infinity, SmartUpdate and SmartComp by their formulas, then each record. All
// records have the same number of nodes.
std::string shared_links_table(const std::vector<RunRecord>& records);

// The same for one record: {measured, zero_infinity, smart_update, smart_comp_2_percent}, each with
// host_link, network and total.
nlohmann::json shared_links_json(const RunRecord& record);

}  // namespace nearstep::train
