// Used when states are assembled, and when one was chosen.
#include "engine/restart/programs.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace nearstep::engine {

namespace {

// The group's manifest of each rank that has one. Several nodes may see it: `reader` is the rank
// that is to read its files, and should be on the node.
class ManifestsOfRanks {
public:
    ManifestsOfRanks(const Findings& found, const StateGroup& group)
        : found_(found), readable_(group.readable.begin(), group.readable.end()) {
        for (const std::size_t member : group.members) {
            of_ranks_[found.manifests[member].rank].push_back(member);
        }
    }

    std::optional<std::size_t> of(int rank, std::size_t reader) const {
        const auto members = of_ranks_.find(rank);
        if (members == of_ranks_.end()) {
            return std::nullopt;
        }
        return *std::ranges::max_element(members->second, {}, [&](std::size_t member) {
            return std::pair(readable_.count(member) > 0,
                             found_.manifests[member].node == found_.ranks[reader].view());
        });
    }

private:
    const Findings& found_;
    std::set<std::size_t> readable_;
    std::map<int, std::vector<std::size_t>> of_ranks_;
};

// Whether that rank kept something until the step, or nobody can tell any more.
bool has_program(const Findings& found, std::size_t manifest, std::int64_t step) {
    const store::ProgramRecord* record =
        store::record_at(manifest_in(found, manifest).programs, step);
    return record == nullptr || record->bytes > 0;
}

void add_source(const Findings& found, std::size_t manifest, std::int64_t step, ProgramsAt& at) {
    const FoundManifest& from = found.manifests[manifest];
    const std::vector<store::ProgramRecord>& records = from.manifest->programs;
    const store::ProgramRecord* record = store::record_at(records, step);
    std::optional<ProgramSource>& source = at.of_ranks.emplace_back();
    if (record != nullptr && record->bytes == 0) {
        return;
    }
    const auto number = record == nullptr ? 0 : static_cast<std::size_t>(record - records.data());
    if (record == nullptr || from.programs.at(number).empty()) {
        const auto is_known = [&](const MissingFile& one) { return one.rank == from.rank; };
        if (std::ranges::none_of(at.missing, is_known)) {
            at.missing.push_back({.rank = from.rank, .place = from.path, .is_program = true});
        }
        return;
    }
    source = {.manifest = manifest, .record = number};
}

// Replaces what the ranks kept at a later step by what the same manifests name for this one.
// Returns whether nothing of it is missing.
bool hold_at(std::int64_t step, const Findings& found, ProgramsAt& at) {
    const std::vector<std::optional<ProgramSource>> newer = std::exchange(at.of_ranks, {});
    for (const std::optional<ProgramSource>& source : newer) {
        if (source) {
            add_source(found, source->manifest, step, at);
        } else {
            at.of_ranks.emplace_back();
        }
    }
    return at.missing.empty();
}

// The first step with the newest state, as far as is known. Skipped updates leave the state as it
// is, so that one state may be that of several steps.
std::int64_t first_of_same_state(const std::vector<KeptStep>& steps) {
    const store::Commit& newest = steps.front().commit;
    if (newest.generation == 0) {
        return 0;
    }
    const bool knows_the_one_before =
        steps.size() > 1 && steps[1].commit.generation == newest.generation - 1;
    return knows_the_one_before ? steps[1].commit.step + 1 : newest.step;
}

}  // namespace

ProgramsAt programs_at(const Findings& found, const StateGroup& group, std::int64_t step) {
    ProgramsAt at;
    if (group.present.empty()) {
        return at;
    }
    const ManifestsOfRanks manifests(found, group);
    const int lowest = *group.present.begin();
    const auto first = manifests.of(lowest, 0);
    const auto computing = static_cast<std::size_t>(found.computing);
    bool is_own = group.ranks == static_cast<int>(found.ranks.size());
    std::vector<std::size_t> used;
    for (std::size_t rank = 0; rank < computing && is_own; ++rank) {
        const auto mine = manifests.of(static_cast<int>(rank), rank);
        is_own = mine && (has_program(found, *mine, step) || !has_program(found, *first, step));
        used.push_back(mine.value_or(0));
    }
    if (!is_own) {
        used.clear();
        for (std::size_t rank = 0; rank < computing; ++rank) {
            used.push_back(*manifests.of(lowest, rank));
        }
    }
    at.is_unlisted = std::ranges::any_of(
        used, [&](std::size_t manifest) { return manifest_in(found, manifest).programs.empty(); });
    if (!at.is_unlisted) {
        for (const std::size_t manifest : used) {
            add_source(found, manifest, step, at);
        }
    }
    return at;
}

void keep_whole_programs(const Findings& found, StateGroup& group) {
    if (found.program != ProgramUse::needed) {
        return;
    }
    std::erase_if(group.commits, [&](const store::Commit& commit) {
        std::vector<MissingFile> missing = programs_at(found, group, commit.step).missing;
        const bool is_short = !missing.empty();
        if (is_short && group.lost_step < 0) {
            group.lost_step = commit.step;
            group.lost_programs = std::move(missing);
        }
        return is_short;
    });
}

bool go_back_to(std::int64_t step, const Findings& found, Decision& decision) {
    std::vector<KeptStep>& steps = decision.steps;
    while (steps.size() > 1 && steps[1].commit.step >= step) {
        steps.erase(steps.begin());
    }
    if (decision.action == Action::load_checkpoint || steps.empty() ||
        steps.front().commit.step < step || first_of_same_state(steps) > step) {
        return false;
    }
    steps.front().commit.step = step;
    return hold_at(step, found, steps.front().programs) || found.program != ProgramUse::needed;
}

}  // namespace nearstep::engine
