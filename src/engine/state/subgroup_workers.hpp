// Work on a rank's subgroups by a pool of threads, outside of steps.
#pragma once

#include "base/executor.hpp"
#include "csd/device.hpp"
#include "offload/step_pipeline.hpp"

#include <cstddef>
#include <functional>

namespace nearstep::engine {

// What is done with each subgroup of a rank; each stage may be empty. `state` has room for each
// element of the subgroup.
struct SubgroupStages {
    // Runs before or after the device is called.
    using OnHost = std::function<void(shard::TileRange tiles, const csd::StateArrays& state)>;
    using OnDevice = std::function<void(csd::Device& device, std::size_t subgroup,
                                        const csd::StateArrays& state)>;
    OnHost before = {};
    OnDevice move = {};
    OnHost after = {};
};

// Handles several subgroups at once, for instance to read one while verifying another, with memory
// for the state of one per thread. Rethrows the first error. Returns the seconds in which at least
// one `move` ran.
double visit_subgroups(offload::StepPipeline& pipeline, Executor& pool,
                       const SubgroupStages& stages);

}  // namespace nearstep::engine
