// Writes a plan as text and as JSON. Both say that it is modelled.
#pragma once

#include "plan/plan_search.hpp"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace nearstep::plan {

// The result for one number of nodes and devices.
struct Row {
    Problem problem;
    SearchResult found;
    std::vector<Alternative> alternatives = {};
    std::vector<Worth> worths = {};
    std::string refusal = {};  // why there was nothing to search; empty otherwise
    double search_s = 0;       // measured search time
    std::string name = {};     // of a named choice; else empty
};

// Searches for the plan and its alternatives.
Row plan_for(const Problem& problem, const Space& space);

// A line per row, then each row's terms, memories, bottleneck, and why its alternatives lose.
std::string describe(const std::vector<Row>& rows);

// An array with one object per row.
nlohmann::json to_json(const std::vector<Row>& rows);

double tokens_per_s(const Problem& problem, const Terms& terms);

// Why the row's plan was chosen, in three sentences: where it has what and the step's time, the
// bytes and seconds behind it, and the best other placement. The row has a plan.
std::string reason_of(const Row& row);

// "needs 10 GB of GPU memory, ...", if nothing was found.
std::string misfit_text(const SearchResult& found);
// Why the row has no plan, which it lacks.
std::string refusal_of(const Row& row);
}  // namespace nearstep::plan
