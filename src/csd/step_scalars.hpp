// The scalars of each parameter group for one step.
#pragma once

#include "arith/update_lane.hpp"
#include "csd/group_map.hpp"

#include <array>
#include <cstdint>

namespace nearstep::csd {

using arith::UpdateScalars;

struct StepScalars {
    StepScalars() = default;
    // Uses the same scalars for all groups.
    // NOLINTNEXTLINE(google-explicit-constructor): a step of one group is its scalars.
    StepScalars(const UpdateScalars& scalars) : random_key(scalars.random_key) {
        of_group.fill(scalars);
    }

    // By group. The random_key of each entry is not used.
    std::array<UpdateScalars, kMostGroups> of_group;
    // Groups without a gradient on any rank. Their masters and moments stay; parameters are rounded
    // from the masters again.
    std::array<bool, kMostGroups> is_skipped = {};
    std::uint64_t random_key = 0;  // of the step, for stochastic rounding
};

}  // namespace nearstep::csd
