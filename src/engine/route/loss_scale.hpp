// The loss scale of fp16 training.
#pragma once

#include "nearstep/layout.hpp"

#include <cstdint>

namespace nearstep::engine {

// Dynamic loss scaling (Micikevicius et al., "Mixed precision training", 2018): halves after a step
// that is not finite, doubles after `growth_steps` finite ones. 1 for formats other than fp16.
class LossScale {
public:
    LossScale(Dtype dtype, const LossScaleSettings& settings);

    double value() const { return value_; }
    std::int64_t good_steps() const { return good_steps_; }
    void restore(double value, std::int64_t good_steps);
    void after_step(bool is_finite);

private:
    bool is_dynamic_;
    std::int64_t growth_steps_;
    double value_;
    std::int64_t good_steps_ = 0;
};

}  // namespace nearstep::engine
