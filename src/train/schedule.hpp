// What changes from step to step: learning rate, loss scale and the scalars of the update.
#pragma once

#include "arith/update_lane.hpp"
#include "config/run.hpp"

#include <cstdint>

namespace nearstep::train {

// Rate of step `step` (from 0): linear warm-up over warmup_steps, then a cosine to final_rate_share
// of it at `steps`.
double learning_rate(const config::TrainSettings& settings, std::int64_t step);

// Dynamic loss scaling (Micikevicius et al., "Mixed precision training", 2018): halved after a step
// that is not finite, doubled after `growth_steps` good ones. Fixed at 1 for formats other than
// fp16.
class LossScale {
public:
    explicit LossScale(const config::Run& run);

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

// Factor that brings a gradient of this norm to at most clip_norm; 1 if clip_norm is 0.
double clip_factor(double norm, double clip_norm);

// Scalars of update number `update` (from 1) at `rate`; gradients are multiplied by
// `gradient_scale`.
arith::UpdateScalars update_scalars(const config::TrainSettings& settings, double rate,
                                    std::int64_t update, double gradient_scale);

}  // namespace nearstep::train
