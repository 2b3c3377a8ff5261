// Other systems as points of the planner's space, evaluated by its formulas.
#pragma once

#include "plan/plan_report.hpp"

#include <string>
#include <vector>

namespace nearstep::plan {

// A system's plan for one number of nodes.
struct SystemRow {
    std::string system;
    Problem problem;
    SearchResult found;
};

// AMSP's meshes as published, in ranks, if empty those that its objective chooses; and what its
// engine hides.
struct Amsp {
    std::vector<int> meshes = {};  // of parameters, gradients and state
    Hidden hidden = Hidden::but_update;
};

// The rows are: ZeRO-1 and ZeRO-2 on an engine like AMSP's; ZeRO-3, ZeRO++ and MiCS on an engine
// that hides no transfers; FSDP's hybrid, which hides all; AMSP; this project's choices with the
// state in GPU memory and, if the site has devices, on them. Where a system leaves something open
// (the size of a group, what backward finds), the fastest choice that fits is taken.
std::vector<SystemRow> systems_of(const Problem& problem, const std::vector<Codec>& codecs,
                                  const Amsp& amsp);

// Returns a line per row.
std::string describe(const std::vector<SystemRow>& rows);

// An array with one object per row.
nlohmann::json to_json(const std::vector<SystemRow>& rows);

}  // namespace nearstep::plan
