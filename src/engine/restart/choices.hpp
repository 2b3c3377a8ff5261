// The states and checkpoints that a run can go on from, all of the newest line that was found.
#pragma once

#include "engine/restart/decide.hpp"
#include "engine/restart/state_groups.hpp"
#include "store/lineage.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace nearstep::engine {

// The states and checkpoints of one line.
struct Choices {
    store::Lineage line;
    std::vector<StateGroup> groups;               // on the line
    const StateGroup* state = nullptr;            // the newest usable one
    const StateGroup* short_of = nullptr;         // the newest unusable one
    const FoundCheckpoint* checkpoint = nullptr;  // the newest
    const FoundCheckpoint* damaged = nullptr;     // the newest that is damaged

    std::int64_t state_step() const { return state == nullptr ? -1 : state->step(); }
    std::int64_t checkpoint_step() const { return checkpoint == nullptr ? -1 : checkpoint->step; }
    std::int64_t newest() const { return std::max(state_step(), checkpoint_step()); }
};

// nullopt if lines have diverged, so that none is newest. `found` outlives the choices.
std::optional<Choices> look(const Findings& found);

// The newest whole checkpoint of the run whose state is here; null if it has none, or if it is not
// known which run that is. Runs may share a checkpoint folder.
const FoundCheckpoint* own_checkpoint(const Findings& found);

}  // namespace nearstep::engine
