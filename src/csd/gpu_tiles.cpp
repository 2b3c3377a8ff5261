// Divides tiles between a GPU and the host. Used by gpu_device.cpp and gpu_engine.cpp.
#include "csd/gpu_tiles.hpp"

#include "csd/state_format.hpp"
#include "shard/partition.hpp"

#include <optional>

namespace nearstep::csd {

namespace {

// The parameter group of the tile; none if several groups share the tile, or if its group is
// skipped.
std::optional<std::size_t> only_group(std::size_t tile, const GroupMap& groups,
                                      const StepScalars& scalars) {
    const std::size_t element = tile * shard::kTileElems;
    const auto runs = groups.runs_in(element, element + shard::kTileElems);
    const std::size_t group = runs.front().group;
    return runs.size() == 1 && !scalars.is_skipped.at(group) ? std::optional(group) : std::nullopt;
}

}  // namespace

TilesByGroup tiles_by_group(std::size_t first_tile, std::size_t tiles, const GroupMap& groups,
                            const StepScalars& scalars) {
    TilesByGroup divided;
    for (std::size_t tile = 0; tile < tiles; ++tile) {
        const auto group = only_group(first_tile + tile, groups, scalars);
        if (!group) {
            divided.others.push_back(tile);
        } else if (!divided.runs.empty() && divided.runs.back().end == tile &&
                   divided.runs.back().group == *group) {
            ++divided.runs.back().end;
        } else {
            divided.runs.push_back({tile, tile + 1, *group});
        }
    }
    return divided;
}

GpuTiles part_of(const GpuTiles& all, std::size_t tile, std::size_t tiles) {
    const std::size_t element = tile * shard::kTileElems;
    GpuTiles part = all;
    part.old = state_from(all.format, all.old, element);
    part.updated = state_from(all.format, all.updated, element);
    part.payloads = all.payloads + tile * all.sources * all.payload_stride;
    if (all.parameters != nullptr) {
        part.parameters += element * size_bytes(all.parameter_dtype);
    }
    part.first_tile = all.first_tile + tile;
    part.tiles = tiles;
    return part;
}

GpuTiles run_of(const GpuTiles& all, const TilesByGroup::GroupTiles& run,
                const StepScalars& scalars) {
    GpuTiles part = part_of(all, run.begin, run.end - run.begin);
    part.random_key = scalars.random_key;
    part.scalars = scalars.of_group.at(run.group);
    return part;
}

}  // namespace nearstep::csd
