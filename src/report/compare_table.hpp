// The results of a comparison of modes: the table, and the summaries for scripts.
#pragma once

#include "report/record.hpp"

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <string>
#include <vector>

namespace nearstep::report {

// One column at one number of devices.
struct Compared {
    std::string label;
    RunRecord record;
    PhaseSeconds seconds = {};  // medians
    // Computed from the site's rates and the seconds of the same compute on unshaped links. Empty
    // if links are not shaped. See report/prediction.hpp.
    std::optional<PhaseSeconds> predicted = {};
};

// Medians over all steps but the first, which warms up.
PhaseSeconds median_seconds(const std::vector<StepReport>& steps);

// Phases, predictions, and speed-ups over the plain column `base` at the same number of devices and
// at its fewest. Speed-ups without a `base` to compare with are left out.
std::string phase_table(const std::vector<Compared>& all);

// The runs' summaries with column, state, codec, phases_s (medians), speedup_over_base,
// speedup_over_first_base and, if links are shaped, predicted_s, predicted_speedup_over_base and
// links.
nlohmann::json to_json(const std::vector<Compared>& all);

}  // namespace nearstep::report
