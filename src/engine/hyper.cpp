// Clipping and scalars of a step. Used by Engine.
#include "engine/hyper.hpp"

#include "base/error.hpp"
#include "base/random.hpp"

#include <cmath>

namespace nearstep::engine {

namespace {

// Differs from the random streams of start values and data.
constexpr std::uint64_t kRoundingStream = 0x726F756E64696E67U;

arith::UpdateScalars update_scalars(const ScalarSet& set, double gradient_scale) {
    const Hyper& hyper = set.hyper;
    const auto t = static_cast<double>(set.update);
    arith::UpdateScalars scalars;
    scalars.gradient_scale = static_cast<float>(gradient_scale);
    scalars.beta1 = static_cast<float>(hyper.beta1);
    scalars.one_minus_beta1 = static_cast<float>(1 - hyper.beta1);
    scalars.beta2 = static_cast<float>(hyper.beta2);
    scalars.one_minus_beta2 = static_cast<float>(1 - hyper.beta2);
    scalars.epsilon = static_cast<float>(hyper.epsilon);
    scalars.optimizer = hyper.optimizer;
    if (arith::has_decoupled_decay(scalars.optimizer)) {
        scalars.decay_factor = static_cast<float>(1 - hyper.rate * hyper.decay);
    } else {
        scalars.gradient_decay = static_cast<float>(hyper.decay);
    }
    scalars.step_size = static_cast<float>(hyper.rate);
    if (arith::corrects_bias(scalars.optimizer)) {
        scalars.step_size = static_cast<float>(hyper.rate / (1 - std::pow(hyper.beta1, t)));
        scalars.root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(hyper.beta2, t)));
    }
    return scalars;
}

}  // namespace

double clip_factor(double norm, double clip_norm) {
    return clip_norm > 0 && norm > clip_norm ? clip_norm / norm : 1.0;
}

double bias_correction(const Hyper& hyper, std::int64_t update) {
    const auto t = static_cast<double>(update);
    return std::sqrt(1 - std::pow(hyper.beta2, t)) / (1 - std::pow(hyper.beta1, t));
}

csd::StepScalars step_scalars(std::span<const ScalarSet> sets, std::uint64_t seed,
                              std::int64_t update, double gradient_scale) {
    expects(sets.size() <= csd::kMostGroups, "there are at most 256 sets of scalars");
    csd::StepScalars scalars;
    for (std::size_t i = 0; i < sets.size(); ++i) {
        scalars.of_group.at(i) = update_scalars(sets[i], gradient_scale);
        scalars.is_skipped.at(i) = sets[i].hyper.is_skipped;
    }
    scalars.random_key = random_bits(seed, kRoundingStream, static_cast<std::uint64_t>(update));
    return scalars;
}

}  // namespace nearstep::engine
