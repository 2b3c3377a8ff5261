// The states that manifests describe, each assembled from the manifests of its ranks.
#pragma once

#include "engine/restart/decide.hpp"

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace nearstep::engine {

// The manifests of one state, as one run or one restart wrote it to its files.
struct StateGroup {
    std::string state = {};
    store::Lineage line = {};
    std::vector<std::size_t> members = {};        // in Findings::manifests
    std::set<int> present = {};                   // ranks of the members
    int ranks = 0;                                // that wrote it
    bool is_same_layout = false;                  // each rank of this run finds its own manifest
    std::vector<std::size_t> readable = {};       // manifests of ranks that hold all tiles together
    std::vector<store::Commit> commits = {};      // that all of `readable` list, newest first
    std::int64_t newest_listed = -1;              // by any member; -1: one lists none
    std::int64_t lost_step = -1;                  // the newest whose program state is not whole
    std::vector<MissingFile> lost_programs = {};  // with `lost_step`
    bool is_pending = false;                      // all members still name a state they replace

    bool is_usable() const { return !commits.empty(); }
    // Whether the run has a step or came from one. Otherwise it has nothing to go on from, and is
    // no line beside others.
    bool is_begun() const { return newest_listed >= 0 || !line.parents.empty(); }
    std::int64_t step() const { return commits.empty() ? -1 : commits.front().step; }
};

// `manifest` is an index in Findings::manifests and is not damaged.
inline const store::Manifest& manifest_in(const Findings& found, std::size_t manifest) {
    return *found.manifests[manifest].manifest;
}

// Makes one group per state. A new state that is incomplete is left out; once it is complete, the
// state that it replaces is left out. So a killed restart counts as done or as never begun.
std::vector<StateGroup> group_states(const Findings& found);

}  // namespace nearstep::engine
