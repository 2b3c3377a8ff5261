// Counts what a run wrote to its drives. Used by the trainer and by comparisons.
#include "report/endurance.hpp"

#include "base/error.hpp"
#include "base/formatted.hpp"
#include "base/units.hpp"

#include <algorithm>

namespace nearstep::report {

namespace {

constexpr double kSecondsPerDay = 86400;
constexpr double kTerabyte = 1e12;

double most(const std::vector<double>& values) {
    return values.empty() ? 0 : std::ranges::max(values);
}

}  // namespace

Endurance measure_endurance(const std::vector<std::uint64_t>& at_start,
                            const std::vector<std::uint64_t>& at_end, std::size_t steps,
                            double seconds, double rated_tbw) {
    expects(at_start.size() == at_end.size(), "a run keeps its devices");
    Endurance endurance{.rated_tbw = rated_tbw};
    for (std::size_t i = 0; i < at_end.size(); ++i) {
        endurance.written_bytes.push_back(static_cast<double>(at_end[i]));
        endurance.written_bytes_per_step.push_back(
            steps == 0 ? 0
                       : static_cast<double>(at_end[i] - at_start[i]) / static_cast<double>(steps));
    }
    const double fastest = most(endurance.written_bytes_per_step);
    if (rated_tbw > 0 && fastest > 0) {
        const double seconds_per_step = seconds / static_cast<double>(steps);
        endurance.days_to_rated_tbw =
            rated_tbw * kTerabyte / fastest * seconds_per_step / kSecondsPerDay;
    }
    return endurance;
}

std::string describe(const Endurance& endurance) {
    std::string out =
        text("written to a device, at most: ", human_bytes(most(endurance.written_bytes_per_step)),
             " per step, ", human_bytes(most(endurance.written_bytes)), " in all");
    if (endurance.days_to_rated_tbw) {
        out += text("; at this rate its rated ", human_bytes(endurance.rated_tbw * kTerabyte),
                    " last ", three_digits(*endurance.days_to_rated_tbw), " days");
    }
    return out;
}

}  // namespace nearstep::report
