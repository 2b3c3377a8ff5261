// Words refusals. Used where a start decides, and where it finds data damaged.
#include "engine/restart/refusal.hpp"

#include "base/error.hpp"
#include "base/number_list.hpp"
#include "base/wording.hpp"
#include "engine/restart/decide.hpp"

#include <cctype>

namespace nearstep::engine {

namespace {

std::string_view key_of_folder(Reason reason) {
    const bool is_of_checkpoints =
        reason == Reason::other_model_of_checkpoint || reason == Reason::unfinished_checkpoint;
    return is_of_checkpoints ? name_of_key("checkpoint.path") : word(Term::path);
}

std::string sentence(const Refusal& refusal, const Findings& found) {
    switch (refusal.reason) {
        case Reason::damaged_checkpoint:
            return refusal.detail;
        case Reason::damaged_newer_checkpoint:
            return text("A newer checkpoint is damaged (", refusal.detail, ")");
        case Reason::damaged_manifest:
            return text("A manifest cannot be used (", refusal.detail, ")");
        case Reason::other_model_of_checkpoint:
            return text("The checkpoint ", refusal.place, " is of another model (", refusal.detail,
                        ")");
        case Reason::other_model_of_state:
            return text("The state files in ", refusal.place, " are of another model (",
                        refusal.detail, ")");
        case Reason::several_runs:
            return "There are several runs here, of which none goes on from the others";
        case Reason::unknown_step:
            return text("It cannot be told which step the state files hold (", refusal.detail, ")");
        case Reason::step_not_whole:
            return text("Step ", refusal.step, " of run ", refusal.run, " is not whole (",
                        refusal.missing.empty() ? "its ranks list no step in common"
                                                : in_words(refusal.missing) + " is missing",
                        ")");
        case Reason::program_not_whole:
            return describe_lost_programs(refusal.step, refusal.missing);
        case Reason::step_elsewhere:
            return text("Step ", refusal.step, " of run ", refusal.run, " is in ", refusal.place,
                        " on ", refusal.host, ", which ", Term::path, " does not name");
        case Reason::no_manifest:
            return "There are state files whose manifest is missing";
        case Reason::no_durable_step:
            return "The newest run here has no durable step, and the checkpoints are of others";
        case Reason::nothing_to_resume:
            return text("There is no checkpoint in ", found.checkpoint_folder,
                        " to resume from, and no state of a run in ", found.state_folder);
        case Reason::nothing_whole:
            return text("There is nothing whole to resume from (", refusal.detail, ")");
        case Reason::lost_all:
            return text(
                "Slurm has started this job again, and an earlier start of it may have taken "
                "steps, but there is no state of a run in ",
                found.state_folder);
        case Reason::run_of_other_job:
            return text("The folder ", refusal.place, " on ", refusal.host, " holds run ",
                        refusal.run, ", which stopped at step ", refusal.step,
                        " and is not that of this job (", refusal.detail, ")");
        case Reason::unknown_run:
            return "Slurm has started this job again, and no record in the user's home "
                   "(XDG_STATE_HOME) tells whether an earlier start of it began the run";
        case Reason::unfinished_state:
        case Reason::unfinished_checkpoint:
            return text("The folder ", refusal.place, " holds a run that stopped at step ",
                        refusal.step, refusal.steps < 0 ? "" : text(" of ", refusal.steps));
    }
    return "";
}

bool lists_what_was_found(Reason reason) {
    switch (reason) {
        case Reason::damaged_newer_checkpoint:
        case Reason::damaged_manifest:
        case Reason::several_runs:
        case Reason::unknown_step:
        case Reason::step_not_whole:
        case Reason::program_not_whole:
        case Reason::no_manifest:
        case Reason::no_durable_step:
        case Reason::nothing_whole:
            return true;
        default:
            return false;
    }
}

// Names what the remedies from Remedy::remove on discard; empty if they discard nothing.
std::string_view given_up(Reason reason) {
    switch (reason) {
        case Reason::unknown_step:
        case Reason::step_not_whole:
        case Reason::program_not_whole:
        case Reason::step_elsewhere:
            return "that step";
        case Reason::no_manifest:
            return "that state";
        case Reason::run_of_other_job:
            return "that run";
        case Reason::damaged_newer_checkpoint:
            return "it";
        default:
            return "";
    }
}

std::string phrase(Remedy remedy, const Refusal& refusal) {
    switch (remedy) {
        case Remedy::bring_back:
            return text("bring back what is missing and use ", Term::resume, " again");
        case Remedy::without_program:
            return "leave keep_random out if the model has no buffers";
        case Remedy::bring_back_for_job:
            return text("bring back the folder of ", Term::path,
                        " or checkpoint.path that has it and release or submit the job again");
        case Remedy::name_folder:
            return text("name that folder and use ", Term::resume, " again");
        case Remedy::resume:
            return text("go on with ", Term::resume);
        case Remedy::start_without_resume:
            return text("start without ", Term::resume);
        case Remedy::same_model:
            return text("resume with the ", Term::made_with, " it was made with");
        case Remedy::other_folder:
            return text("set ", key_of_folder(refusal.reason), " to another folder");
        case Remedy::folders_of_one_run:
            return text("set ", Term::path, " and checkpoint.path to folders with one run");
        case Remedy::folder_of_run:
            return text("set ", Term::path, " or checkpoint.path to its folder");
        case Remedy::remove:
            return text("remove ", refusal.place, " and use ", Term::resume, " again");
        case Remedy::from:
            return refusal.checkpoint.empty() ? text("go on from a checkpoint with ", Term::from)
                                              : text("go on from the checkpoint with ",
                                                     from_checkpoint(refusal.checkpoint));
        case Remedy::fresh:
            return text("start anew with ", Term::fresh);
        case Remedy::new_job:
            return "submit a new job to start anew";
        case Remedy::submit_with_resume:
            return text("submit the job again with ", Term::resume, " to go on with the run in ",
                        Term::path);
    }
    return "";
}

// Joins the phrases as in "a, b, or c".
std::string alternatives(const std::vector<std::string>& phrases) {
    std::string out;
    for (std::size_t i = 0; i < phrases.size(); ++i) {
        out += text(i == 0 ? "" : i + 1 == phrases.size() ? ", or " : ", ", phrases[i]);
    }
    return out;
}

std::string ways(const Refusal& refusal) {
    const std::string_view lost = given_up(refusal.reason);
    std::vector<std::string> keeping;
    std::vector<std::string> losing;
    for (const Remedy remedy : refusal.remedies) {
        (lost.empty() || remedy < Remedy::remove ? keeping : losing)
            .push_back(phrase(remedy, refusal));
    }
    const std::string rest =
        losing.empty() ? "" : text("to give ", lost, " up, ", alternatives(losing));
    return text(alternatives(keeping), keeping.empty() || losing.empty() ? "" : "; ", rest);
}

}  // namespace

std::string in_words(const Refusal& refusal, const Findings& found) {
    if (refusal.remedies.empty()) {
        return sentence(refusal, found);
    }
    std::string rest = ways(refusal);
    if (!lists_what_was_found(refusal.reason)) {
        return text(sentence(refusal, found), ": ", rest, ".");
    }
    rest.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(rest.front())));
    const bool may_be_of_memory = !found.memory_folder.empty() && !refusal.missing.empty();
    return text(
        sentence(refusal, found), ", so nothing was changed. Found: ", describe(found), ". ",
        may_be_of_memory ? text("State in memory (", found.memory_folder, ") is lost in a reboot. ")
                         : "",
        rest, ".");
}

std::string describe_lost_programs(std::int64_t step, const std::vector<MissingFile>& lost) {
    return text("The buffers that were kept with the step cannot be read (step ", step, ": ",
                in_words(lost), ")");
}

std::string in_words(const std::vector<MissingFile>& missing) {
    std::vector<std::string> names;
    for (const MissingFile& one : missing) {
        if (one.is_program) {
            names.push_back(text("no file rank-", one.rank, ".program-* has what the manifest ",
                                 one.place, " names"));
        } else if (one.name.empty()) {
            names.push_back(text("the manifest of rank ", one.rank,
                                 one.place.empty() ? "" : text(" (", one.place, ")")));
        } else {
            names.push_back(
                text("rank ", one.rank, "'s state file ", one.name, " (beside ", one.place, ")"));
        }
    }
    return first_of(names);
}

namespace {

std::string describe(const FoundManifest& one) {
    if (!one.manifest) {
        return one.is_of_newer_version ? " (of a newer version)" : " (damaged)";
    }
    const store::Manifest& manifest = *one.manifest;
    return text(
        manifest.commits.empty() ? " (no step" : text(" (step ", manifest.commits.front().step),
        " of run ", manifest.line.run, ", rank ", one.rank, " of ",
        ranks_of_layout(manifest.layout), ")");
}

}  // namespace

std::string describe(const Findings& found) {
    const auto host = [&](int node) { return found.hosts[static_cast<std::size_t>(node)]; };
    std::vector<std::string> manifests;
    for (const FoundManifest& one : found.manifests) {
        manifests.push_back(text("on host ", host(one.node), " ", one.path, describe(one)));
    }
    std::vector<std::string> others;
    for (const FoundRemains& one : found.remains) {
        others.push_back(
            text("on host ", host(one.node), " ", one.path, " (state that no manifest names)"));
    }
    for (const FoundCheckpoint& one : found.checkpoints) {
        others.push_back(text(
            one.path, one.damage.empty() ? text(" (step ", one.step, " of run ", one.line.run, ")")
                                         : " (damaged)"));
    }
    std::vector<std::string> parts = {first_of(manifests), first_of(others)};
    std::erase(parts, "");
    return parts.empty() ? "nothing" : joined(parts);
}

}  // namespace nearstep::engine
