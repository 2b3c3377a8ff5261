// Divides a subgroup's tiles among a GPU, which updates runs of one parameter group, and the host.
#pragma once

#include "csd/gpu_kernels.hpp"
#include "csd/group_map.hpp"
#include "csd/step_scalars.hpp"

#include <cstddef>
#include <vector>

namespace nearstep::csd {

// Tiles are counted from the subgroup's first.
struct TilesByGroup {
    struct GroupTiles {
        std::size_t begin = 0;
        std::size_t end = 0;
        std::size_t group = 0;
    };
    std::vector<GroupTiles> runs;     // of one group each, which is updated
    std::vector<std::size_t> others;  // those that groups share, and those of skipped groups
};

// Sorts `tiles` tiles by the group they belong to. The first is `first_tile` of the parameter
// vector.
TilesByGroup tiles_by_group(std::size_t first_tile, std::size_t tiles, const GroupMap& groups,
                            const StepScalars& scalars);

// Returns `tiles` tiles of `all` from `tile` on, without scalars.
GpuTiles part_of(const GpuTiles& all, std::size_t tile, std::size_t tiles);

// A run of `all` with the scalars of its group.
GpuTiles run_of(const GpuTiles& all, const TilesByGroup::GroupTiles& run,
                const StepScalars& scalars);

}  // namespace nearstep::csd
