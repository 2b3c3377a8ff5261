// Finds the plan: the choice of a space that fits all memories and has the shortest step.
#pragma once

#include "plan/cost.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nearstep::plan {

// Of plans whose steps are longer than the shortest one by no more than this share, the first in
// the order of the space is taken: the model is no more exact, and simple and lossless comes first.
constexpr double kMargin = 0.01;

struct Plan {
    Choice choice;
    Cost cost;
};

struct Found {
    std::optional<Plan> plan;
    double shortest_s = 0;      // step of the fastest choice; 0 without a plan
    std::optional<Fit> misfit;  // without a plan: of the choice that is nearest to fitting
    std::size_t costed = 0;     // choices whose cost was computed
};

// Exhaustive: what it leaves out it proved to be slower or not to fit.
Found search(const Problem& problem, const Space& space);

// Computes the cost of every allowed choice: what search() must agree with.
Found search_plainly(const Problem& problem, const Space& space);

// Why another value of one field loses.
struct Alternative {
    std::string_view field;
    std::string value;
    Found found;  // the best plan with this value
};

// For every field the best plans with other values than the plan's: each other codec, gather, home,
// order, scatter, owner and landing; of meshes, subgroups and slots the best other one.
std::vector<Alternative> alternatives_to(const Plan& plan, const Problem& problem,
                                         const Space& space);

// The term by which `other` loses most against `plan`; empty if in none.
std::string_view longest_excess(const Terms& plan, const Terms& other);

// What a resource is worth: the share by which the step of the same choice shortens if it is twice
// as fast.
struct Worth {
    std::string_view
        resource;  // "GPU", "GPU links", "device", "host link", "network", "host memory"
    double gain = 0;
};

// The largest first: the first one binds.
std::vector<Worth> worths_of(const Problem& problem, const Choice& choice);

}  // namespace nearstep::plan
