#include "engine/subgroup_workers.hpp"

#include <algorithm>
#include <span>

namespace nearstep::engine {

namespace {

// The memory of one thread, allocated on first use.
struct Memory {
    std::vector<float> master;
    std::vector<float> moment1;
    std::vector<float> moment2;

    csd::StateArrays arrays(std::size_t elems, std::size_t most) {
        for (std::vector<float>* array : {&master, &moment1, &moment2}) {
            array->resize(most);
        }
        return {std::span(master).first(elems), std::span(moment1).first(elems),
                std::span(moment2).first(elems)};
    }
};

}  // namespace

SubgroupWorkers::SubgroupWorkers(offload::StepPipeline& pipeline, ThreadPool& pool) : pool_(pool) {
    pipeline.visit_subgroups(
        [&](csd::Device& device, std::size_t subgroup, shard::TileRange tiles) {
            owned_.push_back({&device, subgroup, tiles});
            most_elems_ = std::max(most_elems_, tiles.size() * shard::kTileElems);
        });
}

void SubgroupWorkers::visit(const Stages& stages) {
    std::vector<Memory> memory(static_cast<std::size_t>(pool_.threads()));
    pool_.share(owned_.size(), [&](std::size_t i, int member) {
        const Owned& of = owned_[i];
        const csd::StateArrays state = memory[static_cast<std::size_t>(member)].arrays(
            of.tiles.size() * shard::kTileElems, most_elems_);
        if (stages.before) {
            stages.before(of.tiles, state);
        }
        if (stages.move) {
            stages.move(*of.device, of.subgroup, state);
        }
        if (stages.after) {
            stages.after(of.tiles, state);
        }
    });
}

}  // namespace nearstep::engine
