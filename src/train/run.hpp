// The program's two ways to train: a run from start to end, and runs of several modes side by side.
#pragma once

#include "config/run.hpp"
#include "mpi/communicator.hpp"
#include "plan/calibration.hpp"

#include <string>
#include <vector>

namespace nearstep::train {

struct RunOptions {
    bool is_resuming = false;  // from the state files, or the newest checkpoint in the run's folder
    bool may_start_anew = false;  // with is_resuming, if there is nothing to resume from
    bool is_fresh = false;        // start anew although an unfinished run is there
    std::string resume_from;      // index of a checkpoint to go on from; empty: the choice is ours
    std::string granted_devices;  // as config::places_of_devices takes them
    int notice_s = 0;             // seconds between a request to stop and the end; 0: not known
    std::string fault_plan;       // for tests: what FaultPoints takes
    std::string json;             // file for the summary; empty: none
    std::string metrics;          // file for a JSON line per step; empty: none
    std::string trace;            // file for a timeline of the steps; empty: none
    int sample_tokens = 0;        // length of the text to sample at the end
    std::string prompt = "\n";
    plan::Calibration calibration;  // for what the run lets expect
};

// Trains as `run` says, prints progress to stdout and writes the files of `options`, all on rank 0.
// Returns false if it stopped on request before its end (see base/stop_request.hpp): then its steps
// are safe, nothing was evaluated since, and the summary says null where a result would be.
// Collective. Throws ConfigError, on all ranks alike, for what
// the user can mend.
bool train(const mpi::Communicator& world, const config::Run& run, const RunOptions& options);

// One set of settings to compare, which says its mode and codec.
struct Column {
    std::string label;  // "su+o+c:csd.state=compact"
    config::Run run;
};

struct CompareOptions {
    std::vector<Column> columns;
    std::vector<int> devices;  // per rank, one run each; empty: as the runs say
    int steps = 5;             // of each run; the first is not timed
    std::string json;          // file for the array of summaries; empty: none
};

// Runs the same first steps with each column and prints seconds per phase and bytes per link; with
// shaped links also what the rates let expect. State goes to folders of its own below csd.path;
// at the end the files that were made there are removed, and nothing else. Collective, throws as
// train().
void compare(const mpi::Communicator& world, const CompareOptions& options);

}  // namespace nearstep::train
