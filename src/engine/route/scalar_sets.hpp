// The optimizer's scalars in a step, and which tensors share them. Tensors of one parameter group
// need several sets if steps left out some of them: like PyTorch, Adam corrects the bias by each
// tensor's own updates.
#pragma once

#include "csd/group_map.hpp"
#include "csd/step_scalars.hpp"
#include "nearstep/layout.hpp"
#include "nearstep/options.hpp"
#include "store/missed_updates.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace nearstep::engine {

// Tensors that share their scalars in a step.
struct ScalarSet {
    Hyper hyper = {};
    std::int64_t update = 1;  // number of the tensors' own update, from 1: corrects Adam's bias
};

// Returns the factor by which the bias correction of Adam and AdamW scales a step, if epsilon is
// small.
double bias_correction(const Hyper& hyper, std::int64_t update);

// The scalars of each set that devices get. `update`: number of the engine's update, for rounding
// with the run's `seed`. Gradients are multiplied by `gradient_scale`.
csd::StepScalars step_scalars(std::span<const ScalarSet> sets, std::uint64_t seed,
                              std::int64_t update, double gradient_scale);

// The sets that the run's devices take.
std::size_t most_scalar_sets(const config::EngineSettings& settings);

// Groups the tensors that share a set of scalars in a step. All ranks compute the same sets; no
// call is collective.
class ScalarSets {
public:
    // No tensor has missed an update. Until a step begins, sets are the layout's groups. `most`:
    // sets that the devices take.
    explicit ScalarSets(const Layout& layout, std::size_t most = csd::kMostGroups);

    // Divides the tensors for the engine's update number `update`, if it takes place. If the
    // devices take fewer sets than are needed, groups with equal settings share a set, and then
    // tensors of a group whose corrections differ least share the one of more updates. Returns
    // whether elements() changed. Throws ConfigError if too many groups have different settings.
    bool begin_step(const StepSettings& step, std::int64_t update);
    // Call when that update has taken place.
    void end_step();

    // Counts an update that no tensor took part in.
    void miss_update();

    // The set of each element, and the sets.
    csd::GroupMap elements() const;
    const std::vector<ScalarSet>& sets() const { return sets_; }

    store::MissedUpdates missed() const;
    store::MissedUpdates missed_after_step() const;  // that end_step() will make
    // Returns how many updates each tensor has missed.
    const std::vector<std::int64_t>& missed_of_tensors() const { return missed_; }
    void restore(const store::MissedUpdates& missed);

private:
    std::size_t most_;
    std::vector<std::size_t> ends_;     // of each tensor, in elements
    std::vector<std::size_t> groups_;   // by tensor
    std::vector<std::int64_t> missed_;  // by tensor
    std::vector<std::size_t> set_of_;   // by tensor
    std::vector<bool> is_skipped_;      // by tensor, in this step
    std::vector<ScalarSet> sets_;
};

}  // namespace nearstep::engine
