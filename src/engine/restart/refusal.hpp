// Why a run does not begin as wished: a reason, its facts and what the user can do, as values.
// in_words() says it in the words of the reader, see base/wording.hpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nearstep::engine {

struct Findings;

enum class Reason {
    damaged_checkpoint,
    damaged_newer_checkpoint,   // than all else
    damaged_manifest,           // for a run that continues nothing
    other_model_of_checkpoint,  // than the run's
    other_model_of_state,
    several_runs,       // of which none goes on from the others
    unknown_step,       // all manifests are damaged
    step_not_whole,     // the newest step lacks files, or a commit that all ranks list
    program_not_whole,  // what the program kept with the newest step
    step_elsewhere,     // a newer step is in a folder that csd.path named before
    no_manifest,        // of state files
    no_durable_step,    // of the newest run; checkpoints are of others
    nothing_to_resume,
    nothing_whole,     // all data that was chosen is damaged
    lost_all,          // in a job that Slurm started again
    run_of_other_job,  // an unfinished run, where such a job would go on
    unknown_run,       // of such a job
    unfinished_state,  // of another run
    unfinished_checkpoint
};

// Ways in which the user may answer a refusal. `remove` and the remedies after it discard the state
// that the refusal names.
enum class Remedy {
    bring_back,          // what is missing
    without_program,     // with a client that needs nothing of it
    bring_back_for_job,  // the same, for a job that resumes by itself
    name_folder,
    resume,
    start_without_resume,
    same_model,
    other_folder,
    folders_of_one_run,
    folder_of_run,
    remove,  // the damaged checkpoint
    from,
    fresh,
    new_job,
    submit_with_resume
};

// A file of a state that no rank found, or what a program kept and no file has any more.
struct MissingFile {
    int rank = 0;            // that wrote it
    std::string name = {};   // of a state file; empty: the manifest
    std::string place = {};  // of the manifest, beside which a state file was; empty: unknown
    bool is_program = false;
};

struct Refusal {
    Reason reason = Reason::nothing_to_resume;
    std::vector<Remedy> remedies = {};
    // Facts, as far as the reason has them.
    std::int64_t step = -1;
    std::int64_t steps = -1;  // of the whole run; -1: it has no known end
    std::string run = {};     // id
    std::string place = {};   // path of the folder or file that it is about
    std::string host = {};    // that sees it
    std::string detail = {};  // how models differ; how data is damaged, as a sentence
    std::vector<MissingFile> missing = {};
    std::string checkpoint = {};  // for Remedy::from; empty: any
};

std::string in_words(const Refusal& refusal, const Findings& found);

// "The buffers that were kept with the step cannot be read (step 7, ...": a sentence without its
// end.
std::string describe_lost_programs(std::int64_t step, const std::vector<MissingFile>& lost);

// "the manifest of rank 1 (host0 p1/rank-1.manifest), ...".
std::string in_words(const std::vector<MissingFile>& missing);

// "host n1: p0/rank-0.manifest holds step 5 of run X (rank 0 of 2), ...": all that was found.
std::string describe(const Findings& found);

}  // namespace nearstep::engine
