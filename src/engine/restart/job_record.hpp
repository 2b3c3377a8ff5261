// Remembers in the user's home which runs a Slurm job has begun, so that a later start of the job
// goes on with these and no others, and does not take a folder that was emptied for one where
// nothing has begun.
//
// The record is $XDG_STATE_HOME/nearstep/slurm-CLUSTER-JOB (~/.local/state without that variable).
// The job's first start makes it, empty by launch/slurm_job, else with its first run; each run adds
// a line, the XXH3 of its first csd.path and its id.
#pragma once

#include <string>
#include <vector>

namespace nearstep::engine {

// Whether Slurm has started this job before.
bool is_restarted_job();

// The runs that earlier starts of this job have begun in a folder.
struct JobRuns {
    // Whether they may have begun a run there. False in a job's first start and outside Slurm. True
    // if the record is missing, as nothing is known then.
    bool may_have_begun = false;
    std::vector<std::string> ids = {};  // of the runs; empty: none, or unknown
};

// `folder`: a first csd.path.
JobRuns runs_of_job(const std::string& folder);

// Adds the run to the record; called when its state names it and before its first step. Does
// nothing outside Slurm. If the record cannot be written, it is removed, and a later start knows
// that it knows nothing.
void note_begun(const std::string& folder, const std::string& run);

}  // namespace nearstep::engine
