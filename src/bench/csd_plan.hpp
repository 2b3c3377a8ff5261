// Which rows the benchmark of devices has.
#pragma once

#include "bench/csd_bench.hpp"
#include "bench/csd_row.hpp"

#include <vector>

namespace nearstep::bench {

// Without settings.states: rows of fp32 state that differ in one part of a device each. With them:
// of each format the moves alone, the step and the durable step, beside those of the first format.
// Throws ConfigError for a format that is not known or named twice.
std::vector<CsdRowSettings> plan_csd_rows(const CsdBenchSettings& bench);

}  // namespace nearstep::bench
