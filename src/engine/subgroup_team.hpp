// A rank's subgroups for the threads of a team, outside of steps.
#pragma once

#include "base/team.hpp"
#include "csd/device.hpp"
#include "offload/step_pipeline.hpp"

#include <cstddef>
#include <functional>
#include <vector>

namespace nearstep::engine {

// Several subgroups at once: one is read while another one is verified.
class SubgroupTeam {
public:
    // Both outlive this.
    SubgroupTeam(offload::StepPipeline& pipeline, Team& team);

    // Each may be empty. `state` has a place for each element of the subgroup.
    struct Stages {
        // Before and after the device is asked.
        using OnHost = std::function<void(shard::TileRange tiles, const csd::StateArrays& state)>;
        using OnDevice = std::function<void(csd::Device& device, std::size_t subgroup,
                                            const csd::StateArrays& state)>;
        OnHost before = {};
        OnDevice move = {};
        OnHost after = {};
    };

    // Takes memory for the state of a subgroup per thread until it returns. Rethrows the first
    // error.
    void visit(const Stages& stages);

private:
    struct Owned {
        csd::Device* device = nullptr;
        std::size_t subgroup = 0;
        shard::TileRange tiles;
    };

    Team& team_;
    std::vector<Owned> owned_;  // in the order of their tiles: neighbours are of different devices
    std::size_t most_elems_ = 0;
};

}  // namespace nearstep::engine
