// The parameters of others that a rank has while a block passes (placement.parameters = "global").
#pragma once

#include "memory/buffer.hpp"
#include "offload/gradient_assembly.hpp"
#include "offload/step_pipeline.hpp"
#include "shard/ownership.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace nearstep::offload {

// Over a rank's parameter vector, of which the rank's own tiles always stay; tiles of others take
// memory only while they are held. Collective, with the same arguments on all ranks.
class ParameterWindow {
public:
    // `vector`: as Buffer::untouched() makes it, `tile_bytes` for each tile. All of them outlive
    // this.
    ParameterWindow(StepPipeline& pipeline, const shard::Ownership& owners, int rank,
                    memory::Buffer& vector, std::size_t tile_bytes);

    // On return all of `now` is there. Of what was held what is neither in `now` nor in `later` is
    // dropped.
    void hold(std::span<const ElementRange> now, std::span<const ElementRange> later);

    void drop_all() { hold({}, {}); }

private:
    // True for each tile with an element of the ranges.
    std::vector<bool> tiles_of(std::span<const ElementRange> ranges) const;

    StepPipeline& pipeline_;
    const shard::Ownership& owners_;
    int rank_;
    memory::Buffer& vector_;
    std::size_t tile_bytes_;
    std::vector<bool> is_held_;  // by all ranks
};

}  // namespace nearstep::offload
