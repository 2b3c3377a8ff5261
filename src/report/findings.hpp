// What bounds a step, and what to add next, from the numbers of a study.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace nearstep::report {

// `rows`: of `nearstep plan --json`, or of an experiment that plans; of a `series` those alone from
// which on something else binds. Modelled, and each sentence says so.
std::vector<std::string> findings_of_plans(const nlohmann::json& rows);

// `rows`: measured ones in the form of cluster/experiments, with column (or series), devices,
// forward_s, backward_s, update_s and step_s. Of equal columns and devices the last row counts.
std::vector<std::string> findings_of_steps(const nlohmann::json& rows);

}  // namespace nearstep::report
