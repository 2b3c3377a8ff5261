// Which parameter group each element of the parameter vector belongs to. A group has its own
// optimizer, learning rate, betas, epsilon and weight decay.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace nearstep::csd {

constexpr std::size_t kMostGroups = 16;

// The elements from the end of the run before, or from 0, up to `end`.
struct GroupRun {
    std::size_t end = 0;
    std::size_t group = 0;  // below kMostGroups
};

// The same on all ranks, for all of a run.
class GroupMap {
public:
    // Every element is of group 0.
    GroupMap();

    // `runs` ascend. Neighbours of one group become one run, and the padding behind the last run
    // belongs to its group. Throws ContractError for a group that there may not be.
    explicit GroupMap(std::span<const GroupRun> runs);

    // One more than the highest group.
    std::size_t groups() const { return groups_; }

    // Ascending without gaps; the last one has no end.
    std::span<const GroupRun> runs() const { return runs_; }

    // Those with elements of [begin, end), which is not empty. The first may begin before it and
    // the last may end behind it.
    std::span<const GroupRun> runs_in(std::size_t begin, std::size_t end) const;

private:
    std::vector<GroupRun> runs_;
    std::size_t groups_ = 1;
};

}  // namespace nearstep::csd
