// Decides what a run begins with. Called by starting_point.cpp and the search.
#include "engine/restart.hpp"

#include "base/error.hpp"
#include "base/wording.hpp"
#include "engine/model_line.hpp"
#include "engine/state_groups.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace nearstep::engine {

namespace {

using store::Lineage;

Decision refuse(const std::string& sentence) {
    Decision decision;
    decision.refusal = sentence;
    return decision;
}

Decision refuse_all(const Found& found, const std::string& why, const std::string& ways) {
    return refuse(text(why, ", so nothing was changed. Found: ", describe(found), ". ", ways));
}

std::string way_from(const Found& found) {
    for (const FoundCheckpoint& checkpoint : found.checkpoints) {
        if (checkpoint.damage.empty()) {
            return text("go on from the checkpoint with ", from_checkpoint(checkpoint.path));
        }
    }
    return text("go on from a checkpoint with ", Term::from);
}

// The manifests and state files of the group that no rank found.
std::string missing_of(const Found& found, const StateGroup& group) {
    std::string out;
    const std::vector<std::string>& places = manifest_in(found, group.members.front()).places;
    for (int rank = 0; rank < group.ranks; ++rank) {
        const auto place = static_cast<std::size_t>(rank);
        if (group.present.count(rank) == 0) {
            out += text(out.empty() ? "" : ", ", "the manifest of rank ", rank,
                        place < places.size() ? text(" (", places[place], ")") : "");
        }
    }
    for (const std::size_t member : group.members) {
        const FoundManifest& one = found.manifests[member];
        for (std::size_t file = 0; file < one.files.size(); ++file) {
            if (one.files[file].empty()) {
                out += text(out.empty() ? "" : ", ", "rank ", one.rank, "'s state file ",
                            one.manifest->files[file], " (beside ", one.path, ")");
            }
        }
    }
    return out;
}

// What a run can resume from on a line.
struct Choices {
    Lineage line;
    std::vector<StateGroup> groups;               // on the line
    const StateGroup* state = nullptr;            // the newest usable one
    const StateGroup* short_of = nullptr;         // the newest unusable one
    const FoundCheckpoint* checkpoint = nullptr;  // the newest
    const FoundCheckpoint* damaged = nullptr;     // the newest that is damaged

    std::int64_t state_step() const { return state == nullptr ? -1 : state->step(); }
    std::int64_t checkpoint_step() const { return checkpoint == nullptr ? -1 : checkpoint->step; }
    std::int64_t newest() const { return std::max(state_step(), checkpoint_step()); }
};

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

void look_at_checkpoints(const Found& found, Choices& choices) {
    for (const FoundCheckpoint& one : found.checkpoints) {
        const FoundCheckpoint*& best = one.damage.empty() ? choices.checkpoint : choices.damaged;
        const bool is_unknown = !one.damage.empty() && one.line.run.empty();
        if ((is_unknown || is_on(choices.line, one.line, one.step)) &&
            (best == nullptr || best->step < one.step)) {
            best = &one;
        }
    }
}

// nullopt if lines have diverged, so that none is newest.
std::optional<Choices> look(const Found& found) {
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
            if (one.damage.empty()) {
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

bool has_damaged_manifest(const Found& found) {
    return std::any_of(found.manifests.begin(), found.manifests.end(),
                       [](const FoundManifest& one) { return !one.manifest; });
}

// The state that must stay while new files are filled; empty: none.
std::string state_with_steps(const std::vector<StateGroup>& groups) {
    const auto has_step = [](const StateGroup& group) { return group.newest_listed >= 0; };
    const auto found = std::find_if(groups.begin(), groups.end(), has_step);
    return found == groups.end() ? "" : found->state;
}

int set_of(const Found& found, const StateGroup& group) {
    return found.manifests[group.members.front()].set;
}

// A set of names without a state with steps and without a damaged manifest.
int free_set(const Found& found, const std::vector<StateGroup>& groups) {
    std::array<bool, kSets> is_used{};
    for (const FoundManifest& one : found.manifests) {
        is_used[static_cast<std::size_t>(one.set)] |= !one.manifest;
    }
    for (const StateGroup& group : groups) {
        is_used[static_cast<std::size_t>(set_of(found, group))] |= group.newest_listed >= 0;
    }
    return is_used[0] && !is_used[1] ? 1 : 0;
}

Decision load(const Found& found, const FoundCheckpoint& checkpoint) {
    if (!checkpoint.damage.empty()) {
        return refuse(checkpoint.damage);
    }
    if (!is_of_model(checkpoint.model, found.model)) {
        return refuse(text("The checkpoint ", checkpoint.path, " is of another model (",
                           difference_of(checkpoint.model, found.model), "): resume with the ",
                           Term::made_with,
                           " it was made with, or name another folder in checkpoint.path."));
    }
    Decision decision;
    decision.action = Action::load_checkpoint;
    decision.line = checkpoint.line;
    decision.checkpoint = checkpoint.path;
    decision.checkpoint_step = checkpoint.step;
    return decision;
}

Decision use_state(const Found& found, const Choices& choices) {
    const StateGroup& group = *choices.state;
    const store::Manifest& first = manifest_in(found, group.readable.front());
    if (!is_of_model(first.model, found.model)) {
        return refuse(text("The state files in ", found.state_folder, " are of another model (",
                           difference_of(first.model, found.model), "): resume with the ",
                           Term::made_with, " they were made with, or name another folder in ",
                           Term::path, "."));
    }
    Decision decision;
    decision.action = group.is_same_layout ? Action::resume_state : Action::read_state;
    decision.line = choices.line;
    decision.commits = group.commits;
    decision.manifests = group.readable;
    for (const std::size_t readable : group.readable) {
        const store::Manifest& manifest = manifest_in(found, readable);
        if (decision.state.empty() || manifest.line == decision.line) {  // the newest line wins
            decision.writer = {.seed = manifest.seed,
                               .data = manifest.data,
                               .dtype = manifest.dtype,
                               .threads = manifest.threads};
            decision.state = manifest.state.empty() ? manifest.line.run : manifest.state;
        }
    }
    decision.checkpoint_step = choices.checkpoint_step();
    if (choices.checkpoint_step() >= group.step()) {
        decision.checkpoint = choices.checkpoint->path;
    }
    decision.set = group.is_same_layout ? set_of(found, group) : 1 - set_of(found, group);
    decision.replaces = group.is_same_layout ? "" : group.state;
    return decision;
}

Decision load_newest(const Found& found, const Choices& choices) {
    Decision decision = load(found, *choices.checkpoint);
    if (decision.action != Action::load_checkpoint) {
        return decision;
    }
    decision.line = choices.line;
    decision.set = free_set(found, choices.groups);
    decision.replaces = state_with_steps(choices.groups);
    for (const StateGroup& group : choices.groups) {
        if (group.newest_listed >= 0) {
            decision.notes.push_back(
                text("The state files hold step ", group.newest_listed,
                     group.newest_listed < choices.checkpoint_step()
                         ? text(", older than the checkpoint ", choices.checkpoint->path)
                         : " in another layout, and so does a checkpoint",
                     "."));
        }
    }
    return decision;
}

// A job that Slurm started again and whose files are all gone, not even a manifest without steps.
bool has_lost_all(const Found& found) {
    return found.wish.may_start_anew() && found.may_have_begun && found.manifests.empty();
}

Decision refuse_lost(const Found& found) {
    return refuse(
        text("Slurm has started this job again, and an earlier start of it may have "
             "taken steps, but there is no state of a run in ",
             found.state_folder, ". Bring back the folder of ", Term::path,
             " or checkpoint.path that has it, and release or submit the job again; to start anew, "
             "submit a "
             "new job."));
}

// For a folder without durable steps.
Decision begin_anew_if_allowed(const Found& found, const Choices& choices) {
    if (choices.damaged != nullptr && choices.groups.empty()) {
        return refuse(choices.damaged->damage);
    }
    if (!found.checkpoints.empty()) {
        return refuse_all(
            found, "The newest run here has no durable step, and the checkpoints are of others",
            text("To go on from one of them, ", way_from(found), "; to start anew, use ",
                 Term::fresh, "."));
    }
    if (has_lost_all(found)) {
        return refuse_lost(found);
    }
    if (found.wish.may_start_anew()) {
        Decision decision;
        decision.action = Action::start_anew;
        return decision;
    }
    return refuse(text("There is no checkpoint in ", found.checkpoint_folder,
                       " to resume from, and no state of a run in ", found.state_folder,
                       ". Start without ", Term::resume, ", or set ", Term::path,
                       " or checkpoint.path to its folder."));
}

// Whether all missing parts were on nodes outside this job. Only a job that restarts by itself
// falls back to a checkpoint then: its user may be asleep, and the checkpoint is on the same line.
bool has_lost_nodes_alone(const Found& found, const StateGroup& group) {
    const std::vector<std::string>& places = manifest_in(found, group.members.front()).places;
    bool has_lost = false;
    for (int rank = 0; rank < group.ranks; ++rank) {
        if (group.present.count(rank) > 0) {
            continue;
        }
        if (static_cast<std::size_t>(rank) >= places.size()) {
            return false;
        }
        const std::string& place = places[static_cast<std::size_t>(rank)];
        const std::string host = place.substr(0, place.find(' '));
        if (std::find(found.hosts.begin(), found.hosts.end(), host) != found.hosts.end()) {
            return false;
        }
        has_lost = true;
    }
    return has_lost;
}

std::int64_t newest_of_remains(const Found& found) {
    std::int64_t newest = 0;
    for (const FoundRemains& one : found.remains) {
        newest = std::max(newest, one.generation);
    }
    return newest;
}

Decision refuse_remains(const Found& found) {
    return refuse_all(
        found, "There are state files whose manifest is missing",
        text("Bring back the folder of ", Term::path, " that has it and use ", Term::resume,
             "; to give "
             "that state up, ",
             way_from(found), ", or start anew with ", Term::fresh, "."));
}

Decision resume(const Found& found) {
    const std::optional<Choices> looked = look(found);
    if (!looked) {
        return refuse_all(found,
                          "There are several runs here, of which none goes on from the others",
                          text("To choose one, ", way_from(found), ", or set ", Term::path,
                               " and checkpoint.path to folders with one run; to start anew, use ",
                               Term::fresh, "."));
    }
    const Choices& choices = *looked;
    if (has_damaged_manifest(found) && choices.state == nullptr && choices.short_of == nullptr) {
        return refuse_all(found, "It cannot be told which step the state files hold",
                          text("To give that step up, ", way_from(found), ", or start anew with ",
                               Term::fresh, "."));
    }
    if (choices.short_of != nullptr && choices.short_of->newest_listed > choices.newest()) {
        const StateGroup& group = *choices.short_of;
        if (found.wish.may_start_anew() && choices.checkpoint != nullptr &&
            has_lost_nodes_alone(found, group)) {
            Decision decision = load_newest(found, choices);
            decision.begins_line = true;  // so that the step does not count when its nodes are back
            decision.notes.push_back(text("Step ", group.newest_listed,
                                          " is given up, since its nodes are not in this job: ",
                                          missing_of(found, group), "."));
            return decision;
        }
        const std::string missing = missing_of(found, group);
        return refuse_all(
            found,
            text("Step ", group.newest_listed, " of run ", group.line.run, " is not whole (",
                 missing.empty() ? "its ranks list no step in common" : missing + " is missing",
                 ")"),
            text(found.memory_folder.empty() || missing.empty()
                     ? ""
                     : text("State in memory (", found.memory_folder, ") is lost in a reboot. "),
                 "Bring back what is missing and use ", Term::resume,
                 " again; to give that step up, ", way_from(found), ", or start anew with ",
                 Term::fresh, "."));
    }
    if (choices.damaged != nullptr && choices.damaged->step > choices.newest() &&
        (choices.newest() >= 0 || !choices.groups.empty())) {
        return refuse_all(found,
                          text("A newer checkpoint is damaged (", choices.damaged->damage, ")"),
                          text("To give it up, remove ", choices.damaged->path, " and use ",
                               Term::resume, " again, or start anew with ", Term::fresh, "."));
    }
    const std::int64_t known = choices.checkpoint != nullptr ? choices.checkpoint->generation : 0;
    if (choices.state == nullptr && newest_of_remains(found) > known) {
        return refuse_remains(found);
    }
    if (choices.newest() < 0) {
        return begin_anew_if_allowed(found, choices);
    }
    const bool is_copied = choices.state != nullptr && !choices.state->is_same_layout;
    if (choices.state_step() > choices.checkpoint_step() ||
        (choices.state_step() == choices.checkpoint_step() && !is_copied)) {
        return use_state(found, choices);
    }
    return load_newest(found, choices);
}

Decision load_named(const Found& found) {
    Decision decision = load(found, *found.named);
    if (decision.action != Action::load_checkpoint) {
        return decision;
    }
    decision.checkpoint_step = -1;  // that one may be in another folder
    decision.begins_line = true;
    if (!found.wish.is_fresh()) {
        const std::vector<StateGroup> groups = group_states(found);
        decision.set = free_set(found, groups);
        decision.replaces = state_with_steps(groups);
    }
    return decision;
}

// Whether the folders hold a step of a run that continued from the named checkpoint.
bool goes_on_from_named(const Found& found) {
    const std::optional<Choices> choices = look(found);
    return choices && choices->newest() >= 0 &&
           std::any_of(choices->line.parents.begin(), choices->line.parents.end(),
                       [&](const store::Branch& parent) {
                           return parent.run == found.named->line.run &&
                                  parent.step == found.named->step;
                       });
}

Decision refuse_unfinished(const char* key, const std::string& folder, std::int64_t step,
                           std::int64_t steps) {
    // Clients without a known end pass the largest number.
    const bool has_end = steps < std::numeric_limits<std::int64_t>::max();
    return refuse(text("The folder ", folder, " holds a run that stopped at step ", step,
                       has_end ? text(" of ", steps) : "", ": go on with ", Term::resume,
                       ", start anew with ", Term::fresh, ", or set ", name_of_key(key),
                       " to another folder."));
}

// A finished run does not block the next one.
Decision start_if_nothing_is_unfinished(const Found& found) {
    for (const FoundManifest& one : found.manifests) {
        if (!one.manifest) {
            return refuse_all(
                found, text("A manifest cannot be used (", one.damage, ")"),
                text("To start anew, use ", Term::fresh, "; else ", way_from(found), "."));
        }
        const store::Manifest& manifest = *one.manifest;
        if (!manifest.commits.empty() && manifest.commits.front().step > 0 &&
            manifest.commits.front().step < manifest.steps) {
            const std::size_t slash = one.path.rfind('/');
            return refuse_unfinished("csd.path", one.path.substr(0, slash),
                                     manifest.commits.front().step, manifest.steps);
        }
    }
    if (newest_of_remains(found) > 0) {
        return refuse_remains(found);
    }
    for (const FoundCheckpoint& one : found.checkpoints) {
        if (!one.damage.empty()) {
            return refuse(one.damage);
        }
        if (one.step < one.steps) {
            return refuse_unfinished("checkpoint.path", found.checkpoint_folder, one.step,
                                     one.steps);
        }
    }
    Decision decision;
    decision.action = Action::start_anew;
    return decision;
}

}  // namespace

std::string describe(const Found& found) {
    std::string out;
    for (const FoundManifest& one : found.manifests) {
        out += text(out.empty() ? "" : ", ", "on host ",
                    found.hosts[static_cast<std::size_t>(one.node)], " ", one.path);
        if (!one.manifest) {
            out += " (damaged)";
            continue;
        }
        const store::Manifest& manifest = *one.manifest;
        out +=
            manifest.commits.empty() ? " (no step" : text(" (step ", manifest.commits.front().step);
        out += text(" of run ", manifest.line.run, ", rank ", one.rank, " of ",
                    ranks_of_layout(manifest.layout), ")");
    }
    for (const FoundRemains& one : found.remains) {
        out += text(out.empty() ? "" : ", ", "on host ",
                    found.hosts[static_cast<std::size_t>(one.node)], " ", one.path,
                    " (state that no manifest names)");
    }
    for (const FoundCheckpoint& one : found.checkpoints) {
        out += text(out.empty() ? "" : ", ", one.path,
                    one.damage.empty() ? text(" (step ", one.step, " of run ", one.line.run, ")")
                                       : " (damaged)");
    }
    return out.empty() ? "nothing" : out;
}

Decision decide(const Found& found) {
    if (found.named) {
        const bool is_restarting = found.wish.may_start_anew() && goes_on_from_named(found);
        if (!is_restarting && has_lost_all(found)) {
            return refuse_lost(found);
        }
        return is_restarting ? resume(found) : load_named(found);
    }
    if (found.wish.is_fresh()) {
        Decision decision;
        decision.action = Action::start_anew;
        return decision;
    }
    return found.wish.resumes() ? resume(found) : start_if_nothing_is_unfinished(found);
}

}  // namespace nearstep::engine
