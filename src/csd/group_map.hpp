// Maps each element of the parameter vector to its parameter group. A group has its own optimizer,
// learning rate, betas, epsilon and weight decay.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace nearstep::csd {

constexpr std::size_t kMostGroups = 256;
constexpr std::size_t kMostGroupsOfCard = 16;

// A run of elements: from the end of the previous run, or from 0, up to `end`.
struct GroupRun {
    std::size_t end = 0;
    std::size_t group = 0;  // below kMostGroups
};

// Maps elements to groups. The same on all ranks.
class GroupMap {
public:
    // All elements belong to group 0.
    GroupMap();

    // `runs` ascend. Adjacent runs of one group are merged. Padding after the last run belongs to
    // its group. Throws ContractError if a group is too large.
    explicit GroupMap(std::span<const GroupRun> runs);

    // The highest group plus one.
    std::size_t groups() const { return groups_; }

    // Ascending without gaps. The last run has no end.
    std::span<const GroupRun> runs() const { return runs_; }

    // The runs that intersect [begin, end), which is not empty. The first may begin earlier and the
    // last may end later.
    std::span<const GroupRun> runs_in(std::size_t begin, std::size_t end) const;

private:
    std::vector<GroupRun> runs_;
    std::size_t groups_ = 1;
};

}  // namespace nearstep::csd
