// Finds the plan: the choice in a space that fits all memories and has the shortest step.
#pragma once

#include "plan/cost.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nearstep::plan {

// Plans within this share of the shortest step count as equal, since the model is no more exact.
// The first of them in the order of the space fixes the formats and tiers, since simple and
// lossless choices come first. The one that sends least with these is taken.
constexpr double kMargin = 0.01;

struct Plan {
    Choice choice;
    Cost cost;
};

struct SearchResult {
    std::optional<Plan> plan;
    double shortest_s = 0;      // step of the fastest choice; 0 without a plan
    std::optional<Fit> misfit;  // without a plan: what the choice nearest to fitting exceeds
    std::size_t costed = 0;     // choices whose cost was computed
};

// Exhaustive: a choice is skipped only if it is proved slower or too large.
SearchResult search(const Problem& problem, const Space& space);

// Computes the cost of every allowed choice. search() must give the same result.
SearchResult search_plainly(const Problem& problem, const Space& space);

// The best plan with another value of one field.
struct Alternative {
    std::string_view field;
    std::string value;
    SearchResult found;  // the best plan with this value
};

// For every field, the best plans with other values, and those of the other clients. Meshes
// and subgroups get the best one only, the other fields one entry per value.
std::vector<Alternative> alternatives_to(const Plan& plan, const Problem& problem,
                                         const Space& space);

// The term in which `other` is worse than `plan` by most; empty if none is worse.
std::string_view longest_excess(const Terms& plan, const Terms& other);

// The worth of a resource: the share by which the same choice's step shortens if the resource is
// twice as fast.
struct Worth {
    std::string_view
        resource;  // "GPU", "GPU links", "device", "host link", "network", "host memory"
    double gain = 0;
};

// Largest gain first: the first is the bottleneck.
std::vector<Worth> worths_of(const Problem& problem, const Choice& choice);

}  // namespace nearstep::plan
