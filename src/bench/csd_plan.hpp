// The rows of the device benchmark.
#pragma once

#include "bench/csd_bench.hpp"
#include "bench/csd_row.hpp"

#include <vector>

namespace nearstep::bench {

// Without settings.states: rows with fp32 state that each differ in one part of a device. With
// them: for each format the moves alone, the step and the durable step, compared with those of the
// first format; where there is a GPU, also several devices without and with its help. Throws
// ConfigError for unknown or repeated formats.
std::vector<CsdRowSettings> plan_csd_rows(const CsdBenchSettings& bench);

}  // namespace nearstep::bench
