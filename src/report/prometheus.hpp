// A file in Prometheus's text format (version 0.0.4) with the present numbers of a run, for the
// textfile collector of node_exporter. Used by the reporter, on rank 0.
#pragma once

#include "config/run_settings.hpp"
#include "report/record.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace nearstep::report {

// A drive of the run, as its labels in the file say.
struct DriveLabel {
    int rank = 0;
    int device = 0;  // of the rank
    std::string host;

    // {rank="0",device="1",host="name"}
    std::string text() const;
};

// The drives of all ranks, whose devices are ordered by rank. `counts`: devices of each rank;
// `drives`: how many of these, the first ones, are drives.
struct RunDrives {
    std::vector<DriveLabel> labels;
    std::vector<std::size_t> places;  // of each drive among all devices

    RunDrives() = default;
    RunDrives(const std::vector<int>& counts, const std::vector<int>& drives,
              const std::vector<std::string>& hosts);
};

// Whether --metrics names such a file: its name ends in .prom.
bool is_prometheus(const std::string& path);

// Returns the bytes of each drive in the file, by label, which earlier processes of the job wrote.
// Lines that are no such counters are ignored.
std::map<std::string, double> written_in(const std::string& text);

// Replaces the file at the first and the last step, and at others at most every second. The
// temporary name beside it does not end in .prom, so that a collector reads whole files alone.
class PrometheusFile {
public:
    // Throws PathError or IoError unless the file can be written. `run` outlives this object.
    PrometheusFile(const config::RunSettings& run, std::size_t parameters, std::string path);

    // `continues`: bytes that the file says earlier processes wrote to drives are kept.
    void begin(std::int64_t last_step, bool continues, RunDrives drives);

    // Returns the reason why the file could not be replaced; empty: there is none. `wall_s`: of the
    // step.
    std::string step(const StepReport& report, double wall_s);
    void heldout(const HeldOutLoss& loss) { heldout_ = loss.nats_per_token; }
    // Bytes that this process wrote to each device of all ranks so far.
    void written(const std::vector<std::uint64_t>& of_devices);
    std::string end();

private:
    using Clock = std::chrono::steady_clock;

    std::string text() const;
    std::string write();

    const config::RunSettings& run_;
    std::size_t parameters_;
    std::string path_;
    std::int64_t last_step_ = 0;
    RunDrives drives_;
    std::map<std::string, double> earlier_;   // of earlier processes, by label
    std::map<std::string, double> by_drive_;  // of all processes
    StepReport report_;
    std::int64_t skipped_ = 0;
    double wall_s_ = 0;
    double heldout_ = -1;  // below 0: not evaluated
    bool is_running_ = true;
    bool is_written_ = false;
    Clock::time_point last_write_;
};

}  // namespace nearstep::report
