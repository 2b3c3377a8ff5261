// The engines of emulated devices: the optimizers on a host core, by its instruction set.
#pragma once

#include "arith/state_lane.hpp"
#include "base/dtype.hpp"
#include "csd/group_map.hpp"
#include "csd/step_scalars.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace nearstep::csd {

using arith::StateFormat;

// Stored state of consecutive elements, which start at a block of kBlockElems. The types are those
// of the format; scales are null without 8-bit moments.
struct StatePointers {
    void* master = nullptr;   // float, or bf16 with compact
    void* moment1 = nullptr;  // float, bf16 or std::int8_t
    void* moment2 = nullptr;  // float, bf16 or std::uint8_t
    float* scale1 = nullptr;  // one per block
    float* scale2 = nullptr;
};

// One pass over elements of one tile: state and parameters are written in place. The arrays do not
// overlap and are aligned for their types.
struct UpdateRun {
    StateFormat format = StateFormat::fp32;
    StatePointers state;
    const void* gradient = nullptr;
    Dtype gradient_dtype = Dtype::fp32;  // or bf16
    void* parameters = nullptr;          // new masters in the parameters' format
    Dtype parameter_dtype = Dtype::bf16;
    arith::TileKey key = {0, 0};
    std::uint32_t first = 0;  // index in the tile of the first element
    std::size_t count = 0;
};

// All engines give the same bits (those of NaN payloads excepted). Stateless; any thread may call.
struct Engine {
    const char* name;
    void (*update)(const arith::UpdateScalars& scalars, const UpdateRun& run);
    // The same where elements are of several groups, or of skipped ones. `groups`: as
    // GroupMap::runs_in() gives them for the run, whose first element has place `element` in the
    // parameter vector. A block has one scale, whatever its groups.
    void (*update_groups)(const StepScalars& scalars, const GroupRun* groups, std::size_t element,
                          const UpdateRun& run);
    // Writes what update() wrote to run.parameters when the masters were made, and nothing else.
    void (*round)(const UpdateRun& run);
    // Adds 1 to each word: memory read and written with nothing to compute, the ceiling that
    // `nearstep bench update` measures.
    void (*increment)(std::uint64_t* words, std::size_t count);
};

// Updates each element by its group's scalars. The run's first element has place `element` in the
// parameter vector.
void update(const Engine& engine, const StepScalars& scalars, const GroupMap& groups,
            std::size_t element, const UpdateRun& run);

// Those that this CPU can run, the slowest first: "scalar", "avx2", "avx512".
const std::vector<Engine>& engines();

// The fastest of them.
inline const Engine& best_engine() { return engines().back(); }

}  // namespace nearstep::csd
