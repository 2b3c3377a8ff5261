// Layouts, folders, settings and start values of engines for tests.
#pragma once

#include "nearstep/run.hpp"
#include "support/places.hpp"
#include "support/test.hpp"

namespace nearstep::engine {

// A tensor for each block.
inline Layout layout_of_blocks(const std::vector<std::size_t>& sizes, Dtype dtype) {
    Layout layout{.dtype = dtype};
    for (const std::size_t size : sizes) {
        const std::size_t begin = layout.elems;
        layout.elems += size;
        layout.tensors.push_back({.name = "at " + std::to_string(begin),
                                  .shape = {static_cast<std::int64_t>(size)},
                                  .offset = begin});
        layout.blocks.push_back({begin, layout.elems});
    }
    return layout;
}

// An empty one in the build folder, for all ranks. Collective.
inline std::string new_folder(const mpi::Communicator& world, const std::string& name) {
    const std::string folder =
        text(test::kBuildFolder, "/engine-", name, "-", std::to_string(world.size()));
    if (world.rank() == 0) {
        fs::remove_all(folder);
        fs::create_directories(folder);
    }
    world.barrier();
    return folder;
}

// Dense gradients, and subgroups of one tile on so many devices of each rank.
inline config::EngineSettings settings_in(const std::string& folder, int devices = 2) {
    config::EngineSettings settings;
    settings.mode = config::Mode::su_o;
    settings.compress.codec = config::PayloadCodec::dense;
    settings.csd.path = {folder + "/state"};
    settings.csd.per_rank = {devices};
    settings.csd.subgroup_tiles = 1;
    settings.checkpoint.path = folder + "/checkpoints";
    return settings;
}

// Fills masters for Run::begin(): each gets the value of its place.
template <typename Value>
auto each_by(const Value& value_at) {
    return [value_at](std::size_t first, std::span<float> masters) {
        for (std::size_t i = 0; i < masters.size(); ++i) {
            masters[i] = value_at(first + i);
        }
    };
}

}  // namespace nearstep::engine
