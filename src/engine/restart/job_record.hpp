// Remembers in the user's home which runs a Slurm job has begun, so that a later start of the job
// does not take a folder that was emptied for one where nothing has begun.
//
// The record is $XDG_STATE_HOME/nearstep/slurm-CLUSTER-JOB (~/.local/state without that variable).
// The job's first start makes it, empty by launch/slurm_job, else with its first run; each run adds
// a line, the XXH3 of its first csd.path.
#pragma once

#include <string>

namespace nearstep::engine {

// Whether an earlier start of this job may have begun a run in `folder`, a first csd.path. False in
// a job's first start and outside Slurm. True if the record is missing, as nothing is known then.
bool may_have_begun(const std::string& folder);

// Adds the run to the record; called before its first step. Does nothing outside Slurm, or if the
// record cannot be written: then a later start asks the user.
void note_begun(const std::string& folder);

}  // namespace nearstep::engine
