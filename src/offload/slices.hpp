// Which rank of a group sums which of a block's tiles for the whole group.
#pragma once

#include "shard/partition.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace nearstep::offload {

class Slices {
public:
    // `member_of`: the member that sums the tile, below `members`.
    Slices(shard::TileRange tiles, int members,
           const std::function<int(std::size_t tile)>& member_of);

    std::size_t tiles() const { return order_.size(); }

    // The tiles' indices in the block, sorted by member, then ascending.
    const std::vector<std::uint32_t>& order() const { return order_; }

    // Position, number and values of a member's entries in order().
    std::size_t first(int member) const { return firsts_[static_cast<std::size_t>(member)]; }
    std::size_t count(int member) const { return first(member + 1) - first(member); }
    std::span<const std::uint32_t> of(int member) const {
        return std::span(order_).subspan(first(member), count(member));
    }

private:
    std::vector<std::uint32_t> order_;
    std::vector<std::size_t> firsts_;  // and the end
};

}  // namespace nearstep::offload
