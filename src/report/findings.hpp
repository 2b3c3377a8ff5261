// Finds what bounds a step, and what to add next, in the numbers of a study.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace nearstep::report {

// `rows`: from `nearstep plan --json`, or an experiment that plans. Within a series, only rows
// where the bottleneck changes give a sentence. Each sentence says that it is modelled.
std::vector<std::string> findings_of_plans(const nlohmann::json& rows);

// `rows`: measured, in the form of cluster/experiments, with column (or series), devices,
// forward_s, backward_s, update_s and step_s. Of rows with equal column and devices the last
// counts.
std::vector<std::string> findings_of_steps(const nlohmann::json& rows);

}  // namespace nearstep::report
