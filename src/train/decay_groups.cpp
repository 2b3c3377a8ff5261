#include "train/decay_groups.hpp"

#include "train/schedule.hpp"

#include <vector>

namespace nearstep::train {

namespace {

constexpr std::size_t kDecayed = 0;
constexpr std::size_t kNotDecayed = 1;

bool is_for_matrices(const config::TrainSettings& settings) { return settings.decay == "matrices"; }

}  // namespace

csd::GroupMap decay_groups(const config::TrainSettings& settings, const model::Geometry& geometry) {
    if (!is_for_matrices(settings)) {
        return {};
    }
    std::vector<csd::GroupRun> runs;
    for (const model::Parameter& parameter : geometry.parameters) {
        runs.push_back({.end = parameter.offset + parameter.elems,
                        .group = parameter.shape.size() >= 2 ? kDecayed : kNotDecayed});
    }
    return csd::GroupMap(runs);
}

csd::StepScalars step_scalars(const config::TrainSettings& settings, double rate,
                              std::int64_t update, double gradient_scale) {
    csd::StepScalars scalars = update_scalars(settings, rate, update, gradient_scale);
    if (is_for_matrices(settings)) {
        config::TrainSettings without = settings;
        without.weight_decay = 0;
        scalars.of_group.at(kNotDecayed) = update_scalars(without, rate, update, gradient_scale);
    }
    return scalars;
}

}  // namespace nearstep::train
