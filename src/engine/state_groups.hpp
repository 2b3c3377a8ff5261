// The states that manifests speak of, each put together from those of its ranks.
#pragma once

#include "engine/restart.hpp"

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace nearstep::engine {

// The manifests of one state: what one run, or a restart of it, filled its files with.
struct StateGroup {
    std::string state = {};
    store::Lineage line = {};
    std::vector<std::size_t> members = {};    // places in Found::manifests
    std::set<int> present = {};               // ranks of the members
    int ranks = 0;                            // that wrote it
    bool is_same_layout = false;              // each rank of this run finds its own
    std::vector<std::size_t> readable = {};   // manifests of ranks that hold all tiles together
    std::vector<store::Commit> commits = {};  // that all of `readable` list, newest first
    std::int64_t newest_listed = -1;          // by any member
    bool is_pending = false;                  // no rank knew yet that all had this one

    bool is_usable() const { return !commits.empty(); }
    std::int64_t step() const { return commits.empty() ? -1 : commits.front().step; }
};

// `manifest`: its place in Found::manifests; it is not damaged.
inline const store::Manifest& manifest_in(const Found& found, std::size_t manifest) {
    return *found.manifests[manifest].manifest;
}

// By state. What was being replaced is left out as soon as the new state is whole, and the new one
// before: a restart that was killed between has happened, or has not.
std::vector<StateGroup> group_states(const Found& found);

}  // namespace nearstep::engine
