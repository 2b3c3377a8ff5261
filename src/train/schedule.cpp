// Computes the learning rate and the hyperparameters of a step. Used by trainer.cpp and step.cpp.
#include "train/schedule.hpp"

#include <algorithm>
#include <cmath>

namespace nearstep::train {

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

std::size_t group_of(const config::TrainSettings& settings, std::size_t dimensions) {
    return settings.decay == config::Decay::matrices && dimensions < 2 ? 1 : 0;
}

std::vector<engine::Hyper> hypers(const config::TrainSettings& settings, std::int64_t step) {
    const engine::Hyper decayed{.optimizer = settings.optimizer,
                                .rate = learning_rate(settings, step),
                                .beta1 = settings.beta1,
                                .beta2 = settings.beta2,
                                .epsilon = settings.epsilon,
                                .decay = settings.weight_decay};
    if (settings.decay == config::Decay::all) {
        return {decayed};
    }
    engine::Hyper others = decayed;
    others.decay = 0;
    return {decayed, others};
}

}  // namespace nearstep::train
