// Work on a rank's subgroups by a pool of threads, outside of steps.
#pragma once

#include "base/executor.hpp"
#include "csd/device.hpp"
#include "offload/step_pipeline.hpp"

#include <cstddef>
#include <functional>
#include <vector>

namespace nearstep::engine {

// Handles several subgroups at once, for instance to read one while verifying another.
class SubgroupWorkers {
public:
    // Both outlive this.
    SubgroupWorkers(offload::StepPipeline& pipeline, Executor& pool);

    // Each stage may be empty. `state` has room for each element of the subgroup.
    struct Stages {
        // Runs before or after the device is called.
        using OnHost = std::function<void(shard::TileRange tiles, const csd::StateArrays& state)>;
        using OnDevice = std::function<void(csd::Device& device, std::size_t subgroup,
                                            const csd::StateArrays& state)>;
        OnHost before = {};
        OnDevice move = {};
        OnHost after = {};
    };

    // Allocates the state of one subgroup per thread for the duration of the call. Rethrows the
    // first error. Returns the seconds in which at least one `move` ran.
    double visit(const Stages& stages);

private:
    struct Owned {
        csd::Device* device = nullptr;
        std::size_t subgroup = 0;
        shard::TileRange tiles;
    };

    Executor& pool_;
    std::vector<Owned> owned_;  // in tile order: neighbours are on different devices
    std::size_t most_elems_ = 0;
};

}  // namespace nearstep::engine
