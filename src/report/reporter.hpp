// Rank 0's reports on a run: lines for the user, and a metrics file of JSON lines. Its first line
// describes the run; then come a line per step, one per evaluation, and a last one when the run
// ends, unless it was killed.
#pragma once

#include "base/output_file.hpp"
#include "config/run_settings.hpp"
#include "report/prometheus.hpp"
#include "report/record.hpp"
#include "report/terminal.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::report {

// Prints only if it is the speaking rank. Metrics lines are with the operating system when a call
// returns, so those of a committed step survive a crash of the process.
//
// On a terminal the progress is one line that rewrites itself. Elsewhere it is a line for the first
// and the last step, and in between a line every 10 s, later every tenth of the time so far.
class Reporter {
public:
    // `metrics`: paths of a file of JSON lines and of one for Prometheus, at most one of each,
    // which are not changed yet. Throws ConfigError.
    Reporter(bool is_speaking, const config::RunSettings& run, std::size_t parameters,
             const std::vector<std::string>& metrics);

    // Writes the first line. Keeps the metrics of the `done` steps that the run continues from, and
    // drops those of steps that a crash undid. At the last step it drops the evaluation, which is
    // repeated. 0 starts a new file.
    void begin(std::int64_t done, std::int64_t last_step, const RunDrives& drives);

    void step(const StepReport& report, std::int64_t last_step, const SpeedOfLight& light);
    void heldout(std::int64_t step, const HeldOutLoss& loss);
    // Bytes that this process wrote to each device of all ranks so far.
    void written(const std::vector<std::uint64_t>& of_devices);
    void say(const std::string& line);
    // The progress line stays as it is.
    void end_progress();
    // Writes the last line of the metrics. `is_finished`: the run did not stop early on request.
    void end(std::int64_t step, bool is_finished);

private:
    using Clock = std::chrono::steady_clock;

    // Whether step `step`, just ended, gets a line.
    bool is_due(std::int64_t step, std::int64_t last_step) const;
    // Says once that a line cannot be written; the run goes on.
    void add_metrics(const std::string& line);
    // Says once why the file for Prometheus was not replaced, if `reason` is not empty.
    void note_prometheus(const std::string& reason);
    void show_progress(const StepReport& report, std::int64_t last_step, const SpeedOfLight& light);

    bool is_speaking_;
    const config::RunSettings& run_;
    std::size_t parameters_;
    std::string metrics_path_;
    LineOutput metrics_;
    bool has_lost_lines_ = false;
    std::optional<PrometheusFile> prometheus_;
    bool is_prometheus_old_ = false;
    Terminal terminal_ = Terminal::of_stdout();
    bool is_line_open_ = false;  // of the progress, on a terminal
    std::int64_t steps_ = 0;
    std::deque<Clock::time_point> ends_;  // of the last steps, the oldest first
    Clock::time_point start_ = Clock::now();
    Clock::time_point last_line_ = Clock::now();
};

}  // namespace nearstep::report
