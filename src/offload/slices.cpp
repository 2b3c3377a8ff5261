#include "offload/slices.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <numeric>

namespace nearstep::offload {

Slices::Slices(shard::TileRange tiles, int members,
               const std::function<int(std::size_t tile)>& member_of)
    : order_(tiles.size()) {
    std::vector<int> member(tiles.size());
    for (std::size_t place = 0; place < member.size(); ++place) {
        member[place] = member_of(tiles.begin + place);
        expects(member[place] >= 0 && member[place] < members, "a member of the group has it");
    }
    std::iota(order_.begin(), order_.end(), 0U);
    std::stable_sort(order_.begin(), order_.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return member[a] < member[b]; });
    for (int of = 0; of <= members; ++of) {
        firsts_.push_back(static_cast<std::size_t>(
            std::count_if(member.begin(), member.end(), [&](int one) { return one < of; })));
    }
}

}  // namespace nearstep::offload
