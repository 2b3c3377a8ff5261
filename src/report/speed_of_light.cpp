// Computes the least time of a run's steps. Used by the reports.
#include "report/speed_of_light.hpp"

#include <algorithm>

namespace nearstep::report {

using trace::Counter;

SpeedOfLight::SpeedOfLight(config::Mode mode, const StepWork& work, const Ceilings& ceilings)
    : mode_(mode), work_(work), ceilings_(ceilings) {}

void SpeedOfLight::note(const trace::TrafficSnapshot& traffic, double update_s) {
    std::uint64_t bytes = traffic[Counter::host_state_read] + traffic[Counter::host_state_write] +
                          traffic[Counter::internal_read] + traffic[Counter::internal_write];
    if (mode_ == config::Mode::base) {  // which also stores the gradients
        bytes += traffic[Counter::host_gradients_read] + traffic[Counter::host_gradients_write];
    }
    work_.state_bytes = static_cast<double>(bytes);
    if (update_s > 0) {
        if (ceilings_.update_s) {  // by rates of reading and writing at once, which may be slower
            ceilings_.update_s = std::min(*ceilings_.update_s, update_s);
        }
        ceilings_.state_bytes = std::max(ceilings_.state_bytes, work_.state_bytes / update_s);
    }
}

double SpeedOfLight::compute_seconds() const {
    return ceilings_.operations > 0 ? work_.operations / ceilings_.operations : 0;
}

double SpeedOfLight::storage_seconds() const {
    const double by_rate =
        ceilings_.state_bytes > 0 ? work_.state_bytes / ceilings_.state_bytes : 0;
    return ceilings_.update_s.value_or(by_rate);
}

SpeedOfLight::Least SpeedOfLight::least() const {
    const double compute = compute_seconds();
    const double storage = storage_seconds();
    if (compute <= 0 && storage <= 0) {
        return {};
    }
    return compute >= storage ? Least{compute, Bound::compute} : Least{storage, Bound::storage};
}

const char* name_of(SpeedOfLight::Bound bound) {
    return bound == SpeedOfLight::Bound::compute ? "compute" : "storage";
}

}  // namespace nearstep::report
