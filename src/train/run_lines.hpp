// The lines that a run prints when it begins and when it ends, without its progress.
#pragma once

#include "train/speed_of_light.hpp"
#include "train/summary.hpp"
#include "train/trainer.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace nearstep::train {

// What will be trained, where its state is, how long a step takes, and what survives a
// crash. `record` has no steps yet. `last`: the step after which the run ends.
std::vector<std::string> head_lines(const Trainer& trainer, const RunRecord& record,
                                    std::int64_t last);

// The libraries and paths that the run uses: how state is read and written, and how gradients and
// parameters travel.
std::vector<std::string> path_lines(const Trainer& trainer, const config::Run& run);

// Three lines: the loss and where the state is; the speed and its bound; the bytes written.
std::string closing_lines(const RunRecord& record, std::int64_t steps_done);

// "  sol 45 % (storage)": the least seconds of a step as a share of `step_s`; empty: unknown.
std::string describe_share(const SpeedOfLight::Least& least, double step_s);

// "0:07", "12:30", "3:05:00".
std::string describe_duration(double seconds);

}  // namespace nearstep::train
