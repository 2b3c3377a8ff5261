// What bounds a step, and what to add next, from the numbers of a study.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace nearstep::report {

// `rows`: of `nearstep plan --json`. Modelled, and each sentence says so.
std::vector<std::string> findings_of_plans(const nlohmann::json& rows);

// `rows`: measured ones in the form of cluster/experiments, with column, devices, forward_s,
// backward_s, update_s and step_s.
std::vector<std::string> findings_of_steps(const nlohmann::json& rows);

}  // namespace nearstep::report
