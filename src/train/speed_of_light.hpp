// The least time that a run's steps can take, and what bounds it: the model's operations or the
// state's bytes.
#pragma once

#include "config/run.hpp"
#include "train/trainer.hpp"

#include <cstddef>
#include <optional>

namespace nearstep::train {

// Known before the first step. Rates are of all ranks together, per second; 0: unknown.
struct Ceilings {
    double operations = 0;   // of a GPU's data sheet, else measured with matrix products
    double state_bytes = 0;  // measured while the state was written or read
    // Least seconds of an update, modelled from rates: see prediction.hpp. Replaces state_bytes.
    std::optional<double> update_s = {};
};

// Bytes that the devices of all ranks read and write for a step's update.
double storage_bytes(const trace::TrafficSnapshot& traffic, config::Mode mode);

class SpeedOfLight {
public:
    enum class Bound { none, compute, storage };
    // A step takes at least `seconds`, because of `bound`.
    struct Least {
        double seconds = 0;
        Bound bound = Bound::none;
    };

    // `step_bytes`: expected storage_bytes() of a step.
    SpeedOfLight(const config::Run& run, std::size_t parameters, const Ceilings& ceilings,
                 double step_bytes);

    // Learns from a step what it moved, and a higher rate of the state if its update shows one.
    void note(const StepReport& report);

    double compute_seconds() const { return compute_s_; }  // 0: unknown
    double storage_seconds() const;                        // 0: unknown
    Least least() const;
    const Ceilings& ceilings() const { return ceilings_; }

private:
    config::Mode mode_;
    Ceilings ceilings_;
    double compute_s_;
    double step_bytes_;
};

// "compute" or "storage".
const char* name_of(SpeedOfLight::Bound bound);

}  // namespace nearstep::train
