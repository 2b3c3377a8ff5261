// What a step gives to the devices: the scalars of each parameter group.
#pragma once

#include "arith/update_lane.hpp"
#include "csd/group_map.hpp"

#include <array>
#include <cstdint>

namespace nearstep::csd {

using arith::UpdateScalars;

struct StepScalars {
    StepScalars() = default;
    // The same for all groups.
    // NOLINTNEXTLINE(google-explicit-constructor): a step of one group is its scalars.
    StepScalars(const UpdateScalars& scalars) : random_key(scalars.random_key) {
        of_group.fill(scalars);
    }

    // By group; their own random_key is not used.
    std::array<UpdateScalars, kMostGroups> of_group;
    // No rank has a gradient for these groups: masters and moments stay, and the parameters are
    // what the masters give.
    std::array<bool, kMostGroups> is_skipped = {};
    std::uint64_t random_key = 0;  // of the step, for stochastic rounding
};

}  // namespace nearstep::csd
