// The program's two ways to train: a run from start to end, and runs of several modes side by side.
#pragma once

#include "config/run.hpp"
#include "mpi/communicator.hpp"

#include <string>
#include <vector>

namespace nearstep::train {

struct RunOptions {
    bool is_resuming = false;  // from the state files, or the newest checkpoint in the run's folder
    bool is_fresh = false;     // start anew although an unfinished run is there
    std::string resume_from;   // index of a checkpoint to go on from; empty: the choice is ours
    std::string fault_plan;    // for tests: what FaultPoints takes
    std::string json;          // file for the summary; empty: none
    std::string metrics;       // file for a JSON line per step; empty: none
    int sample_tokens = 0;     // length of the text to sample at the end
    std::string prompt = "\n";
};

// Trains as `run` says, prints progress to stdout and writes the files of `options`, all on rank 0.
// Collective. Throws ConfigError, on all ranks alike, for what the user can mend.
void train(const mpi::Communicator& world, const config::Run& run, const RunOptions& options);

struct CompareOptions {
    std::vector<config::Mode> modes;
    std::vector<int> devices;    // per rank, one run each; empty: as the run says
    int steps = 5;               // of each run; the first is not timed
    std::string codec = "topk";  // of su+o+c; the others send dense gradients
    std::string json;            // file for the array of summaries; empty: none
};

// Runs the same first steps in each mode and prints seconds per phase and bytes per link. State
// goes to folders of its own below csd.path, removed at the end.
void compare(const mpi::Communicator& world, const config::Run& run, const CompareOptions& options);

}  // namespace nearstep::train
