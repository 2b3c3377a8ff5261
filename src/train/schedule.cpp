#include "train/schedule.hpp"

#include "base/random.hpp"
#include "csd/optimizer.hpp"

#include <algorithm>
#include <cmath>

namespace nearstep::train {

namespace {

// Apart from the streams of start values and data.
constexpr std::uint64_t kRoundingStream = 0x726F756E64696E67U;

}  // namespace

double learning_rate(const config::TrainSettings& settings, std::int64_t step) {
    if (step < settings.warmup_steps) {
        return settings.learning_rate * static_cast<double>(step + 1) /
               static_cast<double>(settings.warmup_steps);
    }
    const auto left =
        static_cast<double>(std::max<std::int64_t>(settings.steps - settings.warmup_steps, 1));
    const double progress = std::min(static_cast<double>(step - settings.warmup_steps) / left, 1.0);
    constexpr double kPi = 3.141592653589793;
    const double cosine = 0.5 * (1.0 + std::cos(kPi * progress));
    return settings.learning_rate *
           (settings.final_rate_share + (1.0 - settings.final_rate_share) * cosine);
}

LossScale::LossScale(const config::Run& run)
    : is_dynamic_(run.model.dtype == Dtype::fp16),
      growth_steps_(run.train.scale_growth_steps),
      value_(is_dynamic_ ? run.train.loss_scale : 1.0) {}

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

double clip_factor(double norm, double clip_norm) {
    return clip_norm > 0 && norm > clip_norm ? clip_norm / norm : 1.0;
}

arith::UpdateScalars update_scalars(const config::TrainSettings& settings, double rate,
                                    std::int64_t update, double gradient_scale) {
    const auto t = static_cast<double>(update);
    arith::UpdateScalars scalars;
    scalars.gradient_scale = static_cast<float>(gradient_scale);
    scalars.beta1 = static_cast<float>(settings.beta1);
    scalars.one_minus_beta1 = static_cast<float>(1 - settings.beta1);
    scalars.beta2 = static_cast<float>(settings.beta2);
    scalars.one_minus_beta2 = static_cast<float>(1 - settings.beta2);
    scalars.epsilon = static_cast<float>(settings.epsilon);
    scalars.optimizer = csd::parse_optimizer(settings.optimizer);
    const bool is_decoupled =
        scalars.optimizer == arith::Optimizer::adamw || scalars.optimizer == arith::Optimizer::lion;
    if (is_decoupled) {
        scalars.decay_factor = static_cast<float>(1 - rate * settings.weight_decay);
    } else {
        scalars.gradient_decay = static_cast<float>(settings.weight_decay);
    }
    scalars.step_size = static_cast<float>(rate);
    if (scalars.optimizer == arith::Optimizer::adamw ||
        scalars.optimizer == arith::Optimizer::adam) {
        scalars.step_size = static_cast<float>(rate / (1 - std::pow(settings.beta1, t)));
        scalars.root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(settings.beta2, t)));
    }
    scalars.random_key =
        random_bits(settings.seed, kRoundingStream, static_cast<std::uint64_t>(update));
    return scalars;
}

}  // namespace nearstep::train
