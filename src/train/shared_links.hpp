// What a run moved over the links that devices and nodes share, beside what the paper's methods do.
#pragma once

#include "plan/paper.hpp"
#include "train/summary.hpp"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace nearstep::train {

// Measured, of all steps of the run: host links both ways, and network.
plan::SharedBytes shared_bytes(const RunRecord& record);

// The table: ZeRO-Infinity, SmartUpdate and SmartComp by their formulas, then each record. The
// records have as many nodes.
std::string shared_links_table(const std::vector<RunRecord>& records);

// The same of one record: {measured, zero_infinity, smart_update, smart_comp_2_percent}, each with
// host_link, network and total.
nlohmann::json shared_links_json(const RunRecord& record);

}  // namespace nearstep::train
