#include "train/speed_of_light.hpp"

#include "model/gpu_peak.hpp"

#include <algorithm>

namespace nearstep::train {

using trace::Counter;

double storage_bytes(const trace::TrafficSnapshot& traffic, config::Mode mode) {
    const std::uint64_t state = traffic[Counter::host_state_read] +
                                traffic[Counter::host_state_write] +
                                traffic[Counter::internal_read] + traffic[Counter::internal_write];
    // Mode base also stores the gradients.
    const std::uint64_t gradients =
        mode == config::Mode::base
            ? traffic[Counter::host_gradients_read] + traffic[Counter::host_gradients_write]
            : 0;
    return static_cast<double>(state + gradients);
}

SpeedOfLight::SpeedOfLight(const config::Run& run, std::size_t parameters, const Ceilings& ceilings,
                           double step_bytes)
    : mode_(run.mode), ceilings_(ceilings), step_bytes_(step_bytes) {
    const double tokens = static_cast<double>(run.train.global_batch) * run.model.context;
    const double operations = model::operations_per_token(run.model, parameters) * tokens;
    compute_s_ = ceilings.operations > 0 ? operations / ceilings.operations : 0;
}

void SpeedOfLight::note(const StepReport& report) {
    if (report.is_skipped) {
        return;
    }
    step_bytes_ = storage_bytes(report.traffic, mode_);
    if (report.seconds.update > 0) {
        if (ceilings_.update_s) {  // by rates of reading and writing at once, which may be slower
            ceilings_.update_s = std::min(*ceilings_.update_s, report.seconds.update);
        }
        ceilings_.state_bytes =
            std::max(ceilings_.state_bytes, step_bytes_ / report.seconds.update);
    }
}

double SpeedOfLight::storage_seconds() const {
    if (ceilings_.update_s) {
        return *ceilings_.update_s;
    }
    return ceilings_.state_bytes > 0 ? step_bytes_ / ceilings_.state_bytes : 0;
}

SpeedOfLight::Least SpeedOfLight::least() const {
    const double storage = storage_seconds();
    if (compute_s_ <= 0 && storage <= 0) {
        return {};
    }
    return compute_s_ >= storage ? Least{compute_s_, Bound::compute}
                                 : Least{storage, Bound::storage};
}

const char* name_of(SpeedOfLight::Bound bound) {
    return bound == SpeedOfLight::Bound::compute ? "compute" : "storage";
}

}  // namespace nearstep::train
