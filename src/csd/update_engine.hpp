// The engines of emulated devices: optimizers on a host core, one engine per instruction set.
#pragma once

#include "arith/state_lane.hpp"
#include "base/dtype.hpp"
#include "csd/gpu_state.hpp"
#include "csd/group_map.hpp"
#include "csd/step_scalars.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace nearstep::csd {

// One pass over elements of one tile. Arrays do not overlap and are aligned for their types.
struct UpdateRun {
    StateFormat format = StateFormat::fp32;
    StatePointers state;     // the new state
    StatePointers old = {};  // where the state is read; null: `state` is updated in place
    const void* gradient = nullptr;
    Dtype gradient_dtype = Dtype::fp32;  // or bf16
    void* parameters = nullptr;          // the new masters, rounded to parameter_dtype
    Dtype parameter_dtype = Dtype::bf16;
    arith::TileKey key = {0, 0};
    std::uint32_t first = 0;  // index within the tile of the first element
    std::size_t count = 0;
    bool streams = false;  // results are not read soon, so that they may go past the caches
};

inline const StatePointers& old_state(const UpdateRun& run) {
    return run.old.master != nullptr ? run.old : run.state;
}

// All engines give the same bits, except NaN payloads. Stateless; any thread may call. An engine
// writes only what the optimizer changes: with `old`, csd::update() copies the rest.
struct UpdateEngine {
    const char* name;
    void (*update)(const arith::UpdateScalars& scalars, const UpdateRun& run);
    // Updates elements of several groups, or of skipped groups. `groups` comes from
    // GroupMap::runs_in() for this run, whose first element has index `element` in the parameter
    // vector. A block has one scale even if groups share it.
    void (*update_groups)(const StepScalars& scalars, const GroupRun* groups, std::size_t element,
                          const UpdateRun& run);
    // Writes only run.parameters: the values update() wrote when it made these masters.
    void (*round)(const UpdateRun& run);
    // Adds 1 to each word. This reads and writes memory without arithmetic, the upper bound that
    // bench/micro measures.
    void (*increment)(std::uint64_t* words, std::size_t count);
};

// Updates each element with its group's scalars. The run's first element has index `element` in the
// parameter vector.
void update(const UpdateEngine& engine, const StepScalars& scalars, const GroupMap& groups,
            std::size_t element, const UpdateRun& run);

// The engines as constants rather than functions, so that naming one runs none of its instructions.
// The vector engines (avx2, avx512) are in builds for x86 only.
extern const UpdateEngine scalar_engine;
extern const UpdateEngine avx2_engine;
extern const UpdateEngine avx512_engine;

// The engines this CPU supports, slowest first: "scalar", "avx2", "avx512".
const std::vector<UpdateEngine>& engines();

inline const UpdateEngine& best_engine() { return engines().back(); }

}  // namespace nearstep::csd
