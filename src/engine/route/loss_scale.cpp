// Grows and shrinks the loss scale. Used by the engine's step.
#include "engine/route/loss_scale.hpp"

#include <algorithm>

namespace nearstep::engine {

LossScale::LossScale(Dtype dtype, const LossScaleSettings& settings)
    : is_dynamic_(dtype == Dtype::fp16),
      growth_steps_(settings.growth_steps),
      value_(is_dynamic_ ? settings.first : 1.0) {}

void LossScale::restore(double value, std::int64_t good_steps) {
    if (is_dynamic_) {
        value_ = value;
        good_steps_ = good_steps;
    }
}

void LossScale::after_step(bool is_finite) {
    if (!is_dynamic_) {
        return;
    }
    if (!is_finite) {
        value_ = std::max(value_ / 2, 1.0);
        good_steps_ = 0;
    } else if (++good_steps_ >= growth_steps_) {
        value_ *= 2;
        good_steps_ = 0;
    }
}

}  // namespace nearstep::engine
