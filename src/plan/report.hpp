// A plan as a text for people and as JSON; each says that it is modelled.
#pragma once

#include "plan/search.hpp"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace nearstep::plan {

// What was found for one number of nodes and of devices.
struct Row {
    Problem problem;
    Found found;
    std::vector<Alternative> alternatives = {};
    std::vector<Worth> worths = {};
    std::string refusal = {};  // why there was nothing to search
    double search_s = 0;       // measured
};

// Searches for the plan and for each alternative to it.
Row plan_for(const Problem& problem, const Space& space);

// A line per row, then for each row the terms, the memories, what binds, and why others lose.
std::string describe(const std::vector<Row>& rows);

// An array with an object per row.
nlohmann::json to_json(const std::vector<Row>& rows);

// What --set takes for where parameters and state are: "placement.parameters=replicated", ...
std::vector<std::string> placement_settings_of(const Choice& choice, const Problem& problem);

// What --set takes for the choice; fields that no key sets are left out.
std::vector<std::string> settings_of(const Choice& choice);

}  // namespace nearstep::plan
