// Assembles states from their ranks' manifests. Called by decide.cpp.
#include "engine/restart/state_groups.hpp"

#include "engine/restart/programs.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <string_view>
#include <utility>

namespace nearstep::engine {

namespace {

// Manifests of an older format name no state, but such a run had only one.
std::string state_of(const store::Manifest& manifest) {
    return manifest.state.empty() ? manifest.line.run : manifest.state;
}

std::vector<store::Commit> common_of(const Findings& found,
                                     const std::vector<std::size_t>& members) {
    std::vector<std::vector<store::Commit>> lists;
    lists.reserve(members.size());
    for (const std::size_t member : members) {
        lists.push_back(manifest_in(found, member).commits);
    }
    return lists.empty() ? std::vector<store::Commit>() : store::common_commits(lists);
}

bool has_all_files(const FoundManifest& one) {
    return std::ranges::find(one.files, "") == one.files.end();
}

// Whether the state files lie where this run's rank opens them.
bool has_files_in_place(const FoundManifest& one, const RankPlaces& places) {
    return has_all_files(one) && one.files == places.files[static_cast<std::size_t>(one.set)];
}

// The manifests of this run's ranks in their places. Fewer if one is missing or lacks a state file.
std::vector<std::size_t> seated(const Findings& found, const std::vector<std::size_t>& members) {
    std::map<std::pair<int, std::string>, std::vector<std::size_t>> at;  // by node and path
    for (const std::size_t member : members) {
        const FoundManifest& one = found.manifests[member];
        at[{one.node, one.path}].push_back(member);
    }
    std::vector<std::size_t> of_ranks;
    for (const RankPlaces& places : found.ranks) {
        const auto is_own = [&](std::size_t member) {
            const FoundManifest& one = found.manifests[member];
            return one.path == places.manifests[static_cast<std::size_t>(one.set)] &&
                   one.manifest->layout == places.layout && has_files_in_place(one, places);
        };
        for (const std::string& path : places.manifests) {
            const std::vector<std::size_t>& here = at[{places.view(), path}];
            const auto mine = std::ranges::find_if(here, is_own);
            if (mine != here.end()) {
                of_ranks.push_back(*mine);
                break;
            }
        }
    }
    return of_ranks;
}

// The manifests of the first copy whose state is all there; empty: no copy is complete.
std::vector<std::size_t> readable_copy(const Findings& found, const StateGroup& group) {
    std::map<int, std::size_t> of_rank;
    for (const std::size_t member : group.members) {
        const FoundManifest& one = found.manifests[member];
        if (has_all_files(one)) {
            of_rank.emplace(one.rank, member);
        }
    }
    const store::Manifest* before = nullptr;
    for (const std::size_t member : group.members) {
        const store::Manifest& manifest = manifest_in(found, member);
        if (before != nullptr && before->copy == manifest.copy &&
            before->layout == manifest.layout) {
            continue;  // the same copy, which is not complete
        }
        before = &manifest;
        const std::vector<int> copy = numbers_in(
            manifest.copy.empty() ? std::vector<NumberRange>{{0, group.ranks - 1}} : manifest.copy);
        std::vector<std::size_t> members;
        for (const int rank : copy) {
            const auto has = of_rank.find(rank);
            if (has != of_rank.end() && manifest_in(found, has->second).layout == manifest.layout) {
                members.push_back(has->second);
            }
        }
        if (!members.empty() && members.size() == copy.size()) {
            return members;
        }
    }
    return {};
}

StateGroup examine(const Findings& found, const std::string& state,
                   const std::vector<std::size_t>& members) {
    StateGroup group{.state = state, .members = members};
    group.is_pending = true;
    for (const std::size_t member : members) {
        const store::Manifest& manifest = manifest_in(found, member);
        group.present.insert(found.manifests[member].rank);
        group.ranks = std::max(group.ranks, ranks_of_layout(manifest.layout));
        group.is_pending = group.is_pending && !manifest.replaces.empty();
        for (const store::Commit& commit : manifest.commits) {
            group.newest_listed = std::max(group.newest_listed, commit.step);
        }
    }
    // A rank that lists no step never made the first commit, so no step of the state was durable.
    if (std::ranges::any_of(members, [&](std::size_t member) {
            return manifest_in(found, member).commits.empty();
        })) {
        group.newest_listed = -1;
    }
    group.readable = seated(found, members);
    group.is_same_layout = group.readable.size() == found.ranks.size() &&
                           group.ranks == static_cast<int>(found.ranks.size());
    if (!group.is_same_layout) {
        group.readable = readable_copy(found, group);
    }
    group.commits = common_of(found, group.readable);
    keep_whole_programs(found, group);
    return group;
}

bool has_all_ranks(const StateGroup& group) {
    return static_cast<int>(group.present.size()) >= group.ranks;
}

}  // namespace

int ranks_of_layout(const std::string& layout) {
    constexpr std::string_view kKey = "ranks=";
    int ranks = 0;
    if (layout.starts_with(kKey)) {
        std::from_chars(layout.data() + kKey.size(), layout.data() + layout.size(), ranks);
    }
    return ranks;
}

std::vector<StateGroup> group_states(const Findings& found) {
    std::map<std::string, std::vector<std::size_t>> by_state;
    for (std::size_t i = 0; i < found.manifests.size(); ++i) {
        if (found.manifests[i].manifest && !found.manifests[i].is_of_other_job) {
            by_state[state_of(manifest_in(found, i))].push_back(i);
        }
    }
    std::map<std::string, StateGroup> groups;
    for (const auto& [state, members] : by_state) {
        groups.emplace(state, examine(found, state, members));
    }
    std::set<std::string> left_out;
    for (const auto& [state, group] : groups) {
        for (const std::size_t member : group.members) {
            const auto before = groups.find(manifest_in(found, member).replaces);
            if (before == groups.end()) {
                continue;
            }
            if (has_all_ranks(group)) {
                left_out.insert(before->first);
            } else if (group.is_pending && before->second.is_usable()) {
                left_out.insert(state);
            }
        }
    }
    std::vector<StateGroup> kept;
    for (auto& [state, group] : groups) {
        if (left_out.count(state) == 0) {
            kept.push_back(std::move(group));
        }
    }
    return kept;
}

}  // namespace nearstep::engine
