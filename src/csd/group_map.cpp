// Maps elements to parameter groups. Used by devices and by engine/route/scalar_sets.cpp.
#include "csd/group_map.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <limits>

namespace nearstep::csd {

namespace {

constexpr std::size_t kNoEnd = std::numeric_limits<std::size_t>::max();

}  // namespace

GroupMap::GroupMap() : runs_({{.end = kNoEnd, .group = 0}}) {}

GroupMap::GroupMap(std::span<const GroupRun> runs) {
    std::size_t begin = 0;
    for (const GroupRun& run : runs) {
        expects(run.group < kMostGroups, "there are at most 256 parameter groups");
        expects(run.end >= begin, "the runs of a group map ascend");
        if (run.end == begin) {
            continue;
        }
        if (!runs_.empty() && runs_.back().group == run.group) {
            runs_.back().end = run.end;
        } else {
            runs_.push_back(run);
        }
        begin = run.end;
        groups_ = std::max(groups_, run.group + 1);
    }
    expects(!runs_.empty(), "a group map has elements");
    runs_.back().end = kNoEnd;
}

std::span<const GroupRun> GroupMap::runs_in(std::size_t begin, std::size_t end) const {
    expects(begin < end, "the range has elements");
    const auto first = std::ranges::upper_bound(runs_, begin, {}, &GroupRun::end);
    const auto last = std::ranges::lower_bound(first, runs_.end(), end, {}, &GroupRun::end);
    return {first, last + 1};
}

}  // namespace nearstep::csd
