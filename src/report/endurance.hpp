// How fast a run wears out its devices' drives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::report {

// Counts state and, in mode base, gradients, with headers, without checkpoints and manifests.
struct Endurance {
    std::vector<double> written_bytes = {};           // per device, by this process
    std::vector<double> written_bytes_per_step = {};  // without start values
    double rated_tbw = 0;                             // TB of one drive; 0: unknown
    // Time until the most written device reaches its rating, at this rate.
    std::optional<double> days_to_rated_tbw = {};
};

// `at_start`, `at_end`: bytes written to each device before and after `steps` steps, which took
// `seconds`.
Endurance measure_endurance(const std::vector<std::uint64_t>& at_start,
                            const std::vector<std::uint64_t>& at_end, std::size_t steps,
                            double seconds, double rated_tbw);

// "written to a device, at most: 94.5 MB per step, 1.2 GB in all; ...".
std::string describe(const Endurance& endurance);

}  // namespace nearstep::report
