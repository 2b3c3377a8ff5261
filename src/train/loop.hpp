// The program's two ways to train: one run from start to end, and a comparison of several modes.
#pragma once

#include "config/run_settings.hpp"
#include "mpi/communicator.hpp"
#include "nearstep/start_request.hpp"
#include "plan/calibration.hpp"

#include <string>
#include <vector>

namespace nearstep::train {

struct RunOptions {
    engine::StartRequest request;
    std::string granted_devices;       // see config::places_of_devices
    int notice_s = 0;                  // seconds between a stop request and the end; 0: unknown
    std::string fault_plan;            // for tests: see FaultPoints
    std::string json;                  // file for the summary; empty: none
    std::vector<std::string> metrics;  // files for a JSON line per step, and for Prometheus
    std::string trace;                 // file for a timeline of the steps; empty: none
    std::string accounts;              // file for report::account_lines(); empty: none
    bool shows_traffic = false;        // print paths at the start and tables at the end
    int sample_tokens = 0;             // tokens to sample at the end
    std::string prompt = "\n";
    plan::Calibration calibration;  // for the expected times
};

// Trains as `run` says. Rank 0 prints progress to stdout and writes the files of `options`. Returns
// false if it stopped early on request (see base/stop_request.hpp): then its steps are safe, no
// evaluation ran after them, and the summary has null for results. Collective. Throws ConfigError,
// on all ranks alike, for what the user can fix.
bool train(const mpi::Communicator& world, const config::RunSettings& run,
           const RunOptions& options);

// One set of settings to compare. The label names what differs.
struct Column {
    std::string label;  // "su+o+c:csd.state=compact"
    config::RunSettings run;
};

struct CompareOptions {
    std::vector<Column> columns;
    std::vector<int> devices;  // per rank, one run each; empty: as configured
    int steps = 5;             // per run; the first is not timed
    std::string json;          // file for the array of summaries; empty: none
    bool shows_traffic = false;
};

// Runs the same first steps with each column. Prints seconds per phase, bytes per link if asked
// for and, with shaped links, the expected times. State lies in separate folders below csd.path. At
// the end only the files made there are removed. Collective; throws like train().
void compare(const mpi::Communicator& world, const CompareOptions& options);

}  // namespace nearstep::train
