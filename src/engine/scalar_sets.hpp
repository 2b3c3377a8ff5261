// Which tensors share their scalars in a step. Tensors of one parameter group need several sets if
// steps left out some of them: like PyTorch, Adam corrects the bias by each tensor's own updates.
#pragma once

#include "csd/group_map.hpp"
#include "engine/hyper.hpp"
#include "engine/layout.hpp"
#include "engine/step.hpp"
#include "store/missed_updates.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace nearstep::engine {

// The same on all ranks; not collective.
class ScalarSets {
public:
    // No tensor has missed an update. Until a step begins, sets are the layout's groups. `most`:
    // sets that the devices take.
    explicit ScalarSets(const Layout& layout, std::size_t most = csd::kMostGroups);

    // Divides the tensors for the engine's update number `update`, if it takes place. If the
    // devices take fewer sets than are needed, groups with equal settings share a set, and then
    // tensors of a group whose corrections differ least share the one of more updates. Returns
    // whether elements() changed. Throws ConfigError if too many groups have different settings.
    bool begin_step(const Step& step, std::int64_t update);
    // Call when that update has taken place.
    void end_step();

    // Counts an update that no tensor has.
    void miss_update();

    // The set of each element, and the sets.
    csd::GroupMap elements() const;
    const std::vector<ScalarSet>& sets() const { return sets_; }

    store::MissedUpdates missed() const;
    // By tensor.
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
