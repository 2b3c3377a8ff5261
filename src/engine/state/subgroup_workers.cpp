// Threads that read, verify or write subgroups outside of steps. Used by Engine.
#include "engine/state/subgroup_workers.hpp"

#include "base/stopwatch.hpp"

#include <mutex>
#include <vector>

namespace nearstep::engine {

namespace {

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

double visit_subgroups(offload::StepPipeline& pipeline, Executor& pool,
                       const SubgroupStages& stages) {
    struct OwnedSubgroup {
        csd::Device* device;
        std::size_t subgroup;
        shard::TileRange tiles;
    };
    std::vector<OwnedSubgroup> owned;  // in tile order: neighbours are on different devices
    pipeline.visit_subgroups(
        [&](csd::Device& device, std::size_t subgroup, shard::TileRange tiles) {
            owned.push_back({&device, subgroup, tiles});
        });
    Occupancy moves;
    std::vector<csd::StateMemory> memory(static_cast<std::size_t>(pool.members()));
    pool.share(owned.size(), [&](std::size_t i, int member) {
        const OwnedSubgroup& of = owned[i];
        const csd::StateArrays state =
            memory[static_cast<std::size_t>(member)].of(of.tiles.size() * shard::kTileElems);
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
