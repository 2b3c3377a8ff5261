// Finds the newest line and what there is of it. Used by decide().
#include "engine/restart/choices.hpp"

#include <utility>

namespace nearstep::engine {

namespace {

using store::Lineage;

// Whether the line includes this step of `other`.
bool is_on(const Lineage& line, const Lineage& other, std::int64_t step) {
    const auto last = store::last_step_of(line, other.run);
    return last && step <= *last;
}

// Drops commits after the point where the line branched off: they were given up.
void keep_to_line(const Lineage& line, StateGroup& group) {
    if (group.line.run != line.run) {
        std::erase_if(group.commits, [&](const store::Commit& commit) {
            return !is_on(line, group.line, commit.step);
        });
        group.newest_listed =
            std::min(group.newest_listed, store::last_step_of(line, group.line.run).value_or(-1));
    }
}

void look_at_checkpoints(const Findings& found, Choices& choices) {
    for (const FoundCheckpoint& one : found.checkpoints) {
        if (one.is_of_other_job) {
            continue;
        }
        const FoundCheckpoint*& best = one.damage.empty() ? choices.checkpoint : choices.damaged;
        const bool is_unknown = !one.damage.empty() && one.line.run.empty();
        if ((is_unknown || is_on(choices.line, one.line, one.step)) &&
            (best == nullptr || best->step < one.step)) {
            best = &one;
        }
    }
}

}  // namespace

std::optional<Choices> look(const Findings& found) {
    Choices choices;
    choices.groups = group_states(found);
    std::vector<Lineage> lines;
    std::vector<Lineage> not_begun;
    for (StateGroup& group : choices.groups) {
        std::vector<Lineage> of_members;
        for (const std::size_t member : group.members) {
            of_members.push_back(manifest_in(found, member).line);
        }
        const auto newest = store::newest_line(of_members);
        if (!newest) {
            return std::nullopt;
        }
        group.line = *newest;
        (group.is_begun() ? lines : not_begun).push_back(*newest);
    }
    if (lines.empty() && !not_begun.empty()) {
        lines.push_back(not_begun.front());  // all are alike: none has anything
    }
    if (lines.empty()) {
        for (const FoundCheckpoint& one : found.checkpoints) {
            if (one.damage.empty() && !one.is_of_other_job) {
                lines.push_back(one.line);
            }
        }
    }
    const auto line = lines.empty() ? Lineage() : store::newest_line(lines);
    if (!line) {
        return std::nullopt;
    }
    choices.line = *line;
    for (StateGroup& group : choices.groups) {
        keep_to_line(*line, group);
    }
    for (const StateGroup& group : choices.groups) {
        const StateGroup*& best = group.is_usable() ? choices.state : choices.short_of;
        const auto newer = [](const StateGroup& a, const StateGroup& b) {
            return std::pair(a.is_usable() ? a.step() : a.newest_listed, a.is_same_layout) >
                   std::pair(b.is_usable() ? b.step() : b.newest_listed, b.is_same_layout);
        };
        if (best == nullptr || newer(group, *best)) {
            best = &group;
        }
    }
    look_at_checkpoints(found, choices);
    return choices;
}

const FoundCheckpoint* own_checkpoint(const Findings& found) {
    const std::optional<Choices> choices = look(found);
    const bool is_known = choices && !choices->groups.empty();
    const auto is_own = [&](const FoundCheckpoint& one) {
        if (!one.damage.empty() || one.is_of_other_job) {
            return false;
        }
        if (is_known) {
            return is_on(choices->line, one.line, one.step);
        }
        // Without a manifest, only the job's record or the checkpoint's own folders tell whose it
        // is.
        return !found.job.ids.empty() ||
               std::ranges::find(one.state_folders, found.state_folder) != one.state_folders.end();
    };
    const FoundCheckpoint* own = nullptr;
    for (const FoundCheckpoint& one : found.checkpoints) {
        if (is_own(one) && (own == nullptr || own->step < one.step)) {
            own = &one;
        }
    }
    return own;
}

}  // namespace nearstep::engine
