// Threads that read, verify or write subgroups outside of steps. Used by StorageEngine.
#include "engine/state/subgroup_workers.hpp"

#include "base/stopwatch.hpp"

#include <algorithm>
#include <mutex>
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

// Adds up the seconds in which at least one thread is between enter() and leave().
class Occupancy {
public:
    void enter() {
        const std::scoped_lock lock(lock_);
        if (inside_++ == 0) {
            watch_.lap();
        }
    }
    void leave() {
        const std::scoped_lock lock(lock_);
        if (--inside_ == 0) {
            seconds_ += watch_.lap();
        }
    }
    double seconds() const { return seconds_; }

private:
    std::mutex lock_;
    int inside_ = 0;
    Stopwatch watch_;
    double seconds_ = 0;
};

}  // namespace

SubgroupWorkers::SubgroupWorkers(offload::StepPipeline& pipeline, Executor& pool) : pool_(pool) {
    pipeline.visit_subgroups(
        [&](csd::Device& device, std::size_t subgroup, shard::TileRange tiles) {
            owned_.push_back({&device, subgroup, tiles});
            most_elems_ = std::max(most_elems_, tiles.size() * shard::kTileElems);
        });
}

double SubgroupWorkers::visit(const Stages& stages) {
    Occupancy moves;
    std::vector<Memory> memory(static_cast<std::size_t>(pool_.members()));
    pool_.share(owned_.size(), [&](std::size_t i, int member) {
        const Owned& of = owned_[i];
        const csd::StateArrays state = memory[static_cast<std::size_t>(member)].arrays(
            of.tiles.size() * shard::kTileElems, most_elems_);
        if (stages.before) {
            stages.before(of.tiles, state);
        }
        if (stages.move) {
            moves.enter();
            stages.move(*of.device, of.subgroup, state);
            moves.leave();
        }
        if (stages.after) {
            stages.after(of.tiles, state);
        }
    });
    return moves.seconds();
}

}  // namespace nearstep::engine
