// The least time that a run's steps can take, and what bounds it: the model's operations or the
// state's bytes.
#pragma once

#include "config/run_settings.hpp"
#include "trace/traffic.hpp"

#include <optional>

namespace nearstep::report {

// Known before the first step. Rates are of all ranks together, per second; 0: unknown.
struct Ceilings {
    double operations = 0;   // of a GPU's data sheet, else measured with matrix products
    double state_bytes = 0;  // measured while the state was written or read
    // Least seconds of an update, modelled from rates: see prediction.hpp. Replaces state_bytes.
    std::optional<double> update_s = {};
};

// The work of one step, by all ranks together.
struct StepWork {
    double operations = 0;   // of the model
    double state_bytes = 0;  // that the devices read and write for the update, as expected
};

class SpeedOfLight {
public:
    enum class Bound { none, compute, storage };
    // A step takes at least `seconds`, because of `bound`.
    struct Least {
        double seconds = 0;
        Bound bound = Bound::none;
    };

    SpeedOfLight(config::Mode mode, const StepWork& work, const Ceilings& ceilings);

    // Learns from a step that was not skipped what it moved, and a higher rate of the state if its
    // update, which took `update_s`, shows one.
    void note(const trace::TrafficSnapshot& traffic, double update_s);

    double compute_seconds() const;  // 0: unknown
    double storage_seconds() const;  // 0: unknown
    Least least() const;
    const Ceilings& ceilings() const { return ceilings_; }

private:
    config::Mode mode_;
    StepWork work_;
    Ceilings ceilings_;
};

// "compute" or "storage".
const char* name_of(SpeedOfLight::Bound bound);

}  // namespace nearstep::report
