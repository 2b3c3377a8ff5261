// How many consecutive ranks hold one copy together: as a config says it, and for a run's ranks.
#pragma once

#include "config/enumerations.hpp"

#include <optional>
#include <string>
#include <variant>

namespace nearstep::config {

// The ranks that compute.
struct RankCounts {
    int all = 1;
    int of_node = 1;  // of the largest node
    bool has_equal_nodes = true;
};

class GroupSize {
public:
    GroupSize() = default;  // "auto"
    // NOLINTNEXTLINE(google-explicit-constructor): either is how a config says it.
    GroupSize(GroupWord word) : asked_(word) {}
    // NOLINTNEXTLINE(google-explicit-constructor)
    GroupSize(int ranks) : asked_(ranks) {}

    bool is_automatic() const { return *this == GroupSize(); }
    const std::variant<GroupWord, int>& asked() const { return asked_; }
    // Returns the value as a config writes it: "node" in quotation marks, or 4.
    std::string written() const;

    // The number of ranks; none if it is automatic.
    std::optional<int> in(const RankCounts& counts) const;

    // Returns the number of ranks. Call it only after resolved_placement() has resolved the size
    // for a run's ranks.
    int ranks() const;
    GroupSize resolved(int ranks) const;
    // Whether a rank has no copy of its own: so are those of a node and of all ranks, even of one.
    bool is_shared() const;

    friend bool operator==(const GroupSize& a, const GroupSize& b) { return a.asked_ == b.asked_; }

private:
    std::variant<GroupWord, int> asked_ = GroupWord::automatic;
    int ranks_ = 0;  // 0: not resolved
};

struct Placement {
    GroupSize parameters;
    GroupSize gradients;
    GroupSize optimizer;
};

struct EngineSettings;

// The settings' placement for these ranks. Automatic sizes are: each rank has all parameters, all
// ranks hold the state once, and gradients are summed over a node; but over as many ranks as hold
// the parameters at least, and as hold the state at most. Throws ConfigError where groups cannot be
// formed, or one is no part of the next.
Placement resolved_placement(const EngineSettings& settings, const RankCounts& counts);

}  // namespace nearstep::config
