// How fast a run wears its devices' drives.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::train {

// Bytes of state and, in mode base, of gradients; headers included, checkpoints and manifests not.
struct Endurance {
    std::vector<double> written_bytes = {};           // per device, by this process's run
    std::vector<double> written_bytes_per_step = {};  // start values left out
    double rated_tbw = 0;                             // TB, of one drive; 0: not known
    // Until the device that is written most has been written what it is rated for, at this rate.
    std::optional<double> days_to_rated_tbw = {};
};

// `at_start`, `at_end`: bytes written to each device before and after so many steps, which took so
// long.
Endurance measure_endurance(const std::vector<std::uint64_t>& at_start,
                            const std::vector<std::uint64_t>& at_end, std::size_t steps,
                            double seconds, double rated_tbw);

nlohmann::json to_json(const Endurance& endurance);

// "written to each device: 94.5 MB per step, 1.2 GB in all; ...".
std::string describe(const Endurance& endurance);

}  // namespace nearstep::train
