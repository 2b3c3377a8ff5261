// Choices that a file names and in part fixes, such as another system's, evaluated by the planner's
// formulas. Called by the command plan.
#pragma once

#include "plan/plan_report.hpp"

#include <optional>
#include <string>
#include <vector>

namespace nearstep::plan {

// How many ranks share one copy of a vector: a number of ranks, all ranks, or the size of a group
// that is the same for every vector that has it.
struct Sharing {
    enum class Kind { ranks, all, group } kind = Kind::all;
    int ranks = 1;
};

// The decisions that a choice file fixes. The fastest choice that fits is taken of all that it
// leaves open.
struct NamedChoice {
    std::string name;
    std::string origin;  // the file, for messages
    StateHome state = StateHome::gpu;
    std::optional<Order> order;
    std::optional<Sharing> parameters;
    std::optional<Sharing> gradients;
    std::optional<Sharing> optimizer;
    Again again = Again::whole_mesh;
    Collective collective = Collective::hierarchical;
    Hidden hidden = Hidden::all;
    std::optional<Hidden> ranked;  // what choices hide while they are compared, if not `hidden`
};

// Reads a choice file. Throws ConfigError for a key or a word that there is not.
NamedChoice read_choice(const std::string& path);

// Throws ConfigError if no choice has all that the file fixes.
Row plan_for(const Problem& problem, const NamedChoice& named, const std::vector<Codec>& codecs);

// Returns a line per row.
std::string describe_named(const std::vector<Row>& rows);

}  // namespace nearstep::plan
