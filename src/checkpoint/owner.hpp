// Keeps the run that a checkpoint folder belongs to, so that runs that share one never remove or
// replace each other's checkpoints. docs/formats/checkpoint.md describes the files.
#pragma once

#include "store/lineage.hpp"

#include <set>
#include <string>
#include <vector>

namespace nearstep::checkpoint {

struct Claimant {
    store::Lineage line = {};
    std::set<std::string> replaced = {};  // runs whose state in csd.path this run has replaced
};

// The folder that a run writes to if it is told to write to `folder`: `folder` itself if it is the
// run's, else the folder "run-<run>" in it. A folder is the run's if it is named after it, if its
// owner's file names it or a run that it replaced, or if there is no such file and all checkpoints
// in it are the run's, its parents' beside its own, or those of runs that it replaced. Makes the
// folder, and claims it by an owner's file. One rank calls this. Throws PathError and IoError as
// make_folder().
std::string claim_folder(const std::string& folder, const Claimant& claimant);

// Claims the folder, if it is there and the run may, so that it stays the run's after a restart
// that knows nothing of the replaced runs.
void take_over_folder(const std::string& folder, const Claimant& claimant);

// Removes the run's owner's file if the checkpoints in the folder tell whose it is.
void release_folder(const std::string& folder, const store::Lineage& line);

// `folder`, then the folders in it that were made by claim_folder().
std::vector<std::string> folders_of_runs(const std::string& folder);

// The run in the name of a folder that claim_folder() has made; empty for any other folder.
std::string run_of_folder(const std::string& folder);

// The run of a damaged index, as far as its folder's name, its own words or, while a run saves, the
// owner's file tell; else empty.
std::string run_of_damaged(const std::string& index_path);

}  // namespace nearstep::checkpoint
