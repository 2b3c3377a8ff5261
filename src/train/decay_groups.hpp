// Which tensors decay (train.decay), as parameter groups.
#pragma once

#include "config/run.hpp"
#include "csd/group_map.hpp"
#include "csd/step_scalars.hpp"
#include "model/geometry.hpp"

#include <cstdint>

namespace nearstep::train {

// "all": one group. "matrices": group 0 has the tensors of two and more dimensions, group 1 the
// others.
csd::GroupMap decay_groups(const config::TrainSettings& settings, const model::Geometry& geometry);

// Of update number `update`, as update_scalars() makes them; group 1 does not decay.
csd::StepScalars step_scalars(const config::TrainSettings& settings, double rate,
                              std::int64_t update, double gradient_scale);

}  // namespace nearstep::train
