// Other ranks' parameters, held while a block passes (placement.parameters = "global").
#pragma once

#include "memory/buffer.hpp"
#include "offload/gradient_assembly.hpp"
#include "offload/step_pipeline.hpp"
#include "shard/ownership.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace nearstep::offload {

// Works on a rank's parameter vector. The rank's own tiles always stay; other tiles take memory
// only while they are held. Collective, with the same arguments on all ranks.
class ParameterWindow {
public:
    // `vector`: made by Buffer::untouched(), with `tile_bytes` for each tile. All arguments outlive
    // this.
    ParameterWindow(StepPipeline& pipeline, const shard::Ownership& owners, int rank,
                    memory::Buffer& vector, std::size_t tile_bytes);

    // Brings all of `now`. Drops held tiles that are neither in `now` nor in `later`.
    void hold(std::span<const ElementRange> now, std::span<const ElementRange> later);

    void drop_all() { hold({}, {}); }

private:
    // True for each tile with an element in the ranges.
    std::vector<bool> tiles_of(std::span<const ElementRange> ranges) const;

    StepPipeline& pipeline_;
    const shard::Ownership& owners_;
    int rank_;
    memory::Buffer& vector_;
    std::size_t tile_bytes_;
    std::vector<bool> is_held_;  // by all ranks
};

}  // namespace nearstep::offload
