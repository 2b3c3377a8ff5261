// The lines that a run prints when it begins and when it ends, without its progress.
#pragma once

#include "report/record.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace nearstep::report {

// The lines at a run's begin: what will be trained, where its state is, how long a step takes, and
// what survives a crash. `record` has no steps yet. `backend`: where and with what the model
// computes. The run goes on behind step `done` and ends with step `last`.
std::vector<std::string> head_lines(const RunRecord& record, const std::string& backend,
                                    std::int64_t done, std::int64_t last);

// The libraries and paths that the run uses: how state is read and written, and how gradients and
// parameters travel. `mpi`: the MPI library's version.
std::vector<std::string> path_lines(const RunRecord& record, const std::string& mpi);

// Three lines: the loss and where the state is; the speed and its bound; the bytes written.
std::string closing_lines(const RunRecord& record, std::int64_t steps_done);

// The work of this process, for a batch system's accounts: lines of a name and a number.
std::string account_lines(const RunRecord& record, std::int64_t steps_done);

// The lines that --traffic adds: tables of the bytes on each link, guesses, deltas, the expected
// times and GPUs.
std::vector<std::string> traffic_lines(const RunRecord& record);

// "GPU NVIDIA H200: ...": memory used, bytes moved; `utilisation` of its peak, if known.
std::string describe(const GpuUse& gpu, std::optional<double> utilisation);

// "  sol 45 % (storage)": the least seconds of a step as a share of `step_s`; empty: unknown.
std::string describe_share(const SpeedOfLight::Least& least, double step_s);

// "0:07", "12:30", "3:05:00".
std::string describe_duration(double seconds);

}  // namespace nearstep::report
