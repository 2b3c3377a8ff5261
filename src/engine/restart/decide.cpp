// Decides what a run begins with. Used by find_start() and the check of hosts.
#include "engine/restart/decide.hpp"

#include "base/error.hpp"
#include "engine/restart/choices.hpp"
#include "engine/restart/model_description.hpp"
#include "engine/restart/programs.hpp"
#include "engine/restart/state_groups.hpp"
#include "store/storage_folder.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace nearstep::engine {

namespace {

Decision start_anew() {
    Decision decision;
    decision.action = Action::start_anew;
    return decision;
}

Decision refuse(const Findings& found, Refusal refusal) {
    const FoundCheckpoint* own = own_checkpoint(found);
    refusal.checkpoint = own == nullptr ? "" : own->path;
    Decision decision;
    decision.refusal = std::move(refusal);
    return decision;
}

Decision refuse_damage(const Findings& found, const std::string& damage) {
    return refuse(found, {.reason = Reason::damaged_checkpoint, .detail = damage});
}

int set_of(const Findings& found, const StateGroup& group) {
    return found.manifests[group.members.front()].set;
}

// The places that the manifests of the group know, by rank.
std::map<int, std::string> places_of(const Findings& found, const StateGroup& group) {
    std::map<int, std::string> places;
    for (const std::size_t member : group.members) {
        const std::map<int, std::string>& known = manifest_in(found, member).places;
        places.insert(known.begin(), known.end());
    }
    return places;
}

// The manifests and state files of the group that no rank found.
std::vector<MissingFile> missing_of(const Findings& found, const StateGroup& group) {
    std::vector<MissingFile> missing;
    const std::map<int, std::string> places = places_of(found, group);
    for (int rank = 0; rank < group.ranks; ++rank) {
        if (group.present.count(rank) == 0) {
            const auto place = places.find(rank);
            missing.push_back(
                {.rank = rank,
                 .place = place == places.end()
                              ? ""
                              : text(place->second, "/",
                                     store::manifest_name(rank, set_of(found, group)))});
        }
    }
    for (const std::size_t member : group.members) {
        const FoundManifest& one = found.manifests[member];
        for (std::size_t file = 0; file < one.files.size(); ++file) {
            if (one.files[file].empty()) {
                missing.push_back(
                    {.rank = one.rank, .name = one.manifest->files[file], .place = one.path});
            }
        }
    }
    return missing;
}

// Null: none.
const FoundManifest* find_damaged_manifest(const Findings& found) {
    const auto one = std::ranges::find_if(found.manifests,
                                          [](const FoundManifest& each) { return !each.manifest; });
    return one == found.manifests.end() ? nullptr : &*one;
}

// The state that must stay while new files are filled; empty: none.
std::string state_with_steps(const std::vector<StateGroup>& groups) {
    const auto has_step = [](const StateGroup& group) { return group.newest_listed >= 0; };
    const auto found = std::ranges::find_if(groups, has_step);
    return found == groups.end() ? "" : found->state;
}

// A set of names without a state with steps and without a damaged manifest.
int free_set(const Findings& found, const std::vector<StateGroup>& groups) {
    std::array<bool, kSets> is_used{};
    for (const FoundManifest& one : found.manifests) {
        is_used[static_cast<std::size_t>(one.set)] |=
            !one.manifest || (one.is_of_other_job && !one.manifest->commits.empty());
    }
    for (const StateGroup& group : groups) {
        is_used[static_cast<std::size_t>(set_of(found, group))] |= group.newest_listed >= 0;
    }
    return is_used[0] && !is_used[1] ? 1 : 0;
}

Decision load(const Findings& found, const FoundCheckpoint& checkpoint) {
    if (!checkpoint.damage.empty()) {
        return refuse_damage(found, checkpoint.damage);
    }
    if (!is_of_model(checkpoint.model, found.model)) {
        return refuse(found, {.reason = Reason::other_model_of_checkpoint,
                              .remedies = {Remedy::same_model, Remedy::other_folder},
                              .place = checkpoint.path,
                              .detail = difference_of(checkpoint.model, found.model)});
    }
    Decision decision;
    decision.action = Action::load_checkpoint;
    decision.line = checkpoint.line;
    decision.checkpoint = checkpoint.path;
    decision.checkpoint_step = checkpoint.step;
    return decision;
}

void add_note_of_lost_programs(const StateGroup& group, Decision& decision) {
    if (group.lost_step >= 0) {
        decision.notes.push_back(text(describe_lost_programs(group.lost_step, group.lost_programs),
                                      ", so that step is not used."));
    }
}

Decision use_state(const Findings& found, const Choices& choices) {
    const StateGroup& group = *choices.state;
    const store::Manifest& first = manifest_in(found, group.readable.front());
    if (!is_of_model(first.model, found.model)) {
        return refuse(found, {.reason = Reason::other_model_of_state,
                              .remedies = {Remedy::same_model, Remedy::other_folder},
                              .place = found.state_folder,
                              .detail = difference_of(first.model, found.model)});
    }
    Decision decision;
    decision.action = group.is_same_layout ? Action::resume_state : Action::read_state;
    decision.line = choices.line;
    for (const store::Commit& commit : group.commits) {
        decision.steps.push_back({.commit = commit});
        if (found.program != ProgramUse::none) {
            decision.steps.back().programs = programs_at(found, group, commit.step);
        }
    }
    add_note_of_lost_programs(group, decision);
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

Decision load_newest(const Findings& found, const Choices& choices) {
    Decision decision = load(found, *choices.checkpoint);
    if (decision.action != Action::load_checkpoint) {
        return decision;
    }
    decision.line = choices.line;
    decision.set = free_set(found, choices.groups);
    decision.replaces = state_with_steps(choices.groups);
    for (const StateGroup& group : choices.groups) {
        if (group.lost_step >= 0) {
            add_note_of_lost_programs(group, decision);
        } else if (group.newest_listed >= 0) {
            decision.notes.push_back(text("The state files hold step ", group.newest_listed,
                                          ", older than the checkpoint ", choices.checkpoint->path,
                                          "."));
        }
    }
    if (!found.remains.empty()) {
        decision.notes.push_back(text("There are state files whose manifest is missing, ",
                                      found.remains.front().path, " among them: the checkpoint ",
                                      choices.checkpoint->path, " is used in their place."));
    }
    return decision;
}

// A job that Slurm started again and whose files are all gone, not even a manifest without steps.
bool has_lost_all(const Findings& found) {
    return found.request.may_start_anew() && found.job.may_have_begun &&
           std::ranges::all_of(found.manifests, &FoundManifest::is_of_other_job);
}

Decision refuse_lost(const Findings& found) {
    return refuse(found, {.reason = Reason::lost_all,
                          .remedies = {Remedy::bring_back_for_job, Remedy::new_job}});
}

// Decides for a folder without durable steps.
Decision begin_anew_if_allowed(const Findings& found, const Choices& choices) {
    if (choices.damaged != nullptr && choices.groups.empty()) {
        return refuse_damage(found, choices.damaged->damage);
    }
    if (!std::ranges::all_of(found.checkpoints, &FoundCheckpoint::is_of_other_job)) {
        return refuse(
            found, {.reason = Reason::no_durable_step, .remedies = {Remedy::from, Remedy::fresh}});
    }
    if (has_lost_all(found)) {
        return refuse_lost(found);
    }
    if (found.request.may_start_anew()) {
        return start_anew();
    }
    return refuse(found, {.reason = Reason::nothing_to_resume,
                          .remedies = {Remedy::start_without_resume, Remedy::folder_of_run}});
}

// Whether all missing parts were on nodes outside this job; a place that no manifest knows may have
// been on one of its nodes. Only a job that restarts by itself falls back to a checkpoint then: its
// user may be asleep, and the checkpoint is on the same line.
bool has_lost_nodes_alone(const Findings& found, const StateGroup& group) {
    const std::set<std::string> hosts(found.hosts.begin(), found.hosts.end());
    const std::map<int, std::string> places = places_of(found, group);
    bool has_lost = false;
    for (int rank = 0; rank < group.ranks; ++rank) {
        if (group.present.count(rank) > 0) {
            continue;
        }
        const auto place = places.find(rank);
        if (place == places.end() ||
            hosts.count(place->second.substr(0, place->second.find(' '))) > 0) {
            return false;
        }
        has_lost = true;
    }
    return has_lost;
}

std::int64_t newest_of_remains(const Findings& found) {
    std::int64_t newest = 0;
    for (const FoundRemains& one : found.remains) {
        newest = std::max(newest, one.generation);
    }
    return newest;
}

Decision refuse_remains(const Findings& found) {
    return refuse(found, {.reason = Reason::no_manifest,
                          .remedies = {Remedy::bring_back, Remedy::from, Remedy::fresh}});
}

Decision resume(const Findings& found) {
    const std::optional<Choices> looked = look(found);
    if (!looked) {
        return refuse(found,
                      {.reason = Reason::several_runs,
                       .remedies = {Remedy::from, Remedy::folders_of_one_run, Remedy::fresh}});
    }
    const Choices& choices = *looked;
    const FoundManifest* const damaged = find_damaged_manifest(found);
    if (damaged != nullptr && choices.state == nullptr && choices.short_of == nullptr) {
        return refuse(found, {.reason = Reason::unknown_step,
                              .remedies = {Remedy::from, Remedy::fresh},
                              .detail = damaged->damage});
    }
    if (choices.short_of != nullptr && choices.short_of->newest_listed > choices.newest()) {
        const StateGroup& group = *choices.short_of;
        if (found.request.may_start_anew() && choices.checkpoint != nullptr &&
            has_lost_nodes_alone(found, group)) {
            Decision decision = load_newest(found, choices);
            decision.begins_line = true;  // so that the step does not count when its nodes are back
            decision.notes.push_back(text("Step ", group.newest_listed,
                                          " is given up, since its nodes are not in this job: ",
                                          in_words(missing_of(found, group)), "."));
            return decision;
        }
        if (group.lost_step >= 0) {
            return refuse(found, {.reason = Reason::program_not_whole,
                                  .remedies = {Remedy::bring_back, Remedy::without_program,
                                               Remedy::from, Remedy::fresh},
                                  .step = group.lost_step,
                                  .run = group.line.run,
                                  .missing = group.lost_programs});
        }
        return refuse(found, {.reason = Reason::step_not_whole,
                              .remedies = {Remedy::bring_back, Remedy::from, Remedy::fresh},
                              .step = group.newest_listed,
                              .run = group.line.run,
                              .missing = missing_of(found, group)});
    }
    if (choices.damaged != nullptr && choices.damaged->step > choices.newest() &&
        (choices.newest() >= 0 || !choices.groups.empty())) {
        const bool has_older = choices.newest() >= 0;
        return refuse(found,
                      {.reason = Reason::damaged_newer_checkpoint,
                       .remedies = {has_older ? Remedy::remove : Remedy::from, Remedy::fresh},
                       .place = choices.damaged->path,
                       .detail = choices.damaged->damage});
    }
    const std::int64_t known = choices.checkpoint != nullptr ? choices.checkpoint->generation : 0;
    if (choices.state == nullptr && newest_of_remains(found) > known) {
        return refuse_remains(found);
    }
    if (choices.newest() < 0) {
        return begin_anew_if_allowed(found, choices);
    }
    return choices.state_step() >= choices.checkpoint_step() ? use_state(found, choices)
                                                             : load_newest(found, choices);
}

Decision load_named(const Findings& found) {
    Decision decision = load(found, *found.named);
    if (decision.action != Action::load_checkpoint) {
        return decision;
    }
    decision.checkpoint_step = -1;  // that one may be in another folder
    decision.begins_line = true;
    if (!found.request.is_fresh()) {
        const std::vector<StateGroup> groups = group_states(found);
        decision.set = free_set(found, groups);
        decision.replaces = state_with_steps(groups);
    }
    return decision;
}

// Whether the folders hold a step of a run that continued from the named checkpoint.
bool goes_on_from_named(const Findings& found) {
    const std::optional<Choices> choices = look(found);
    return choices && choices->newest() >= 0 &&
           std::ranges::any_of(choices->line.parents, [&](const store::Branch& parent) {
               return parent.run == found.named->line.run && parent.step == found.named->step;
           });
}

Decision refuse_unfinished(const Findings& found, Reason reason, const std::string& folder,
                           std::int64_t step, std::int64_t steps) {
    // Clients without a known end pass the largest number.
    const bool has_end = steps < std::numeric_limits<std::int64_t>::max();
    return refuse(found, {.reason = reason,
                          .remedies = {Remedy::resume, Remedy::fresh, Remedy::other_folder},
                          .step = step,
                          .steps = has_end ? steps : -1,
                          .place = folder});
}

bool is_unfinished(const store::Manifest& manifest) {
    return !manifest.commits.empty() && manifest.commits.front().step > 0 &&
           manifest.commits.front().step < manifest.steps;
}

// A finished run does not block the next one.
Decision start_if_nothing_is_unfinished(const Findings& found) {
    for (const FoundManifest& one : found.manifests) {
        if (!one.manifest) {
            return refuse(found, {.reason = Reason::damaged_manifest,
                                  .remedies = {Remedy::from, Remedy::fresh},
                                  .place = one.path,
                                  .detail = one.damage});
        }
        const store::Manifest& manifest = *one.manifest;
        if (is_unfinished(manifest)) {
            const std::size_t slash = one.path.rfind('/');
            return refuse_unfinished(found, Reason::unfinished_state, one.path.substr(0, slash),
                                     manifest.commits.front().step, manifest.steps);
        }
    }
    if (newest_of_remains(found) > 0) {
        return refuse_remains(found);
    }
    for (const FoundCheckpoint& one : found.checkpoints) {
        if (!one.damage.empty()) {
            return refuse_damage(found, one.damage);
        }
        if (one.step < one.steps) {
            const bool is_there = one.path.starts_with(found.checkpoint_folder + "/");
            return refuse_unfinished(
                found, Reason::unfinished_checkpoint,
                is_there ? found.checkpoint_folder : one.path.substr(0, one.path.rfind('/')),
                one.step, one.steps);
        }
    }
    return start_anew();
}

// Goes on with the run of a job that Slurm started again. Another run that is unfinished there, as
// on another host, is given up only if the job was to give up what it found.
Decision resume_job(const Findings& found) {
    Decision decision = resume(found);
    if (decision.action == Action::refuse || found.request.is_fresh_job ||
        !found.request.path.empty()) {
        return decision;
    }
    for (const FoundManifest& one : found.manifests) {
        if (one.is_of_other_job && is_unfinished(*one.manifest)) {
            return refuse(found, {.reason = Reason::run_of_other_job,
                                  .remedies = {Remedy::other_folder, Remedy::from, Remedy::fresh},
                                  .step = one.manifest->commits.front().step,
                                  .run = one.manifest->line.run,
                                  .place = store::folder_of(one.path),
                                  .host = found.hosts[static_cast<std::size_t>(one.node)],
                                  .detail = text("run ", found.job.ids.back())});
        }
    }
    return decision;
}

// Whether a job that was submitted to start anew, and that Slurm started again, does so once more.
bool starts_anew_again(const Findings& found) {
    return found.request.is_fresh_job && !found.job.may_have_begun;
}

}  // namespace

Decision decide(const Findings& found) {
    if (found.request.is_fresh_job && found.job.may_have_begun && found.job.ids.empty()) {
        return refuse(found, {.reason = Reason::unknown_run,
                              .remedies = {Remedy::submit_with_resume, Remedy::new_job}});
    }
    if (found.named) {
        const bool is_restarting = found.request.may_start_anew() && !starts_anew_again(found) &&
                                   goes_on_from_named(found);
        if (!is_restarting && has_lost_all(found)) {
            return refuse_lost(found);
        }
        return is_restarting ? resume_job(found) : load_named(found);
    }
    if (found.request.is_fresh() || starts_anew_again(found)) {
        return start_anew();
    }
    return found.request.resumes() ? resume_job(found) : start_if_nothing_is_unfinished(found);
}

}  // namespace nearstep::engine
