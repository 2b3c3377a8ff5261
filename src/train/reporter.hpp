// Rank 0's reports of a run: lines for the user, and a metrics file with a JSON line per step.
#pragma once

#include "config/run.hpp"
#include "train/trainer.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>

namespace nearstep::train {

// Silent on ranks other than the speaking one. Lines of the metrics file are with the operating
// system when a call returns, so that those of a committed step outlive a crash of the process.
class Reporter {
public:
    // `metrics`: the file, opened without changing it; empty: none. Throws ConfigError.
    Reporter(bool is_speaking, const config::Run& run, std::size_t parameters, std::string metrics);

    // Keeps the metrics of the `done` steps that the run goes on from, without the evaluation that
    // it repeats if it is at its last step; drops those of steps that a crash undid. 0: starts
    // anew.
    void begin(std::int64_t done, std::int64_t last_step);

    void step(const StepReport& report, std::int64_t last_step);
    void heldout(std::int64_t step, const HeldOutLoss& loss);
    void say(const std::string& line) const;

private:
    using Clock = std::chrono::steady_clock;

    void print_line(const StepReport& report, std::int64_t last_step) const;

    bool is_speaking_;
    const config::Run& run_;
    std::size_t parameters_;
    std::string metrics_path_;
    std::ofstream metrics_;
    std::int64_t steps_ = 0;
    Clock::time_point start_ = Clock::now();
    Clock::time_point last_line_ = Clock::now();
};

}  // namespace nearstep::train
