// A site's devices as `nearstep bench csd` measured one, in place of what its file says.
#pragma once

#include "config/run.hpp"
#include "plan/problem.hpp"

#include <string>

namespace nearstep::plan {

// What was taken from a result file.
struct Calibration {
    std::string row = {};         // its name there
    double parameters_per_s = 0;  // of one device, reads, update and writes at once; the median
};

// `text`: the lines of `nearstep bench csd --json`; `path`: for messages. The row is that of a step
// with the run's csd.state, with flushes if csd.durability is "step". Throws ConfigError if there
// is none.
Calibration read_calibration(const std::string& text, const std::string& path,
                             const config::CsdSettings& csd);

// A device that updates so many parameters: its links read and write the state at that rate, and
// its engine and memory, which were measured with them, are no limit of their own.
void calibrate(const Calibration& calibration, double state_bytes, Site& site);

}  // namespace nearstep::plan
