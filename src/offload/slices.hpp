// Which of a block's tiles each rank of a group adds up for all of it.
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
    // `member_of`: who adds the tile up, below `members`.
    Slices(shard::TileRange tiles, int members,
           const std::function<int(std::size_t tile)>& member_of);

    std::size_t tiles() const { return order_.size(); }

    // The tiles' places in the block, all of a member's side by side: ascending, and members in
    // order.
    const std::vector<std::uint32_t>& order() const { return order_; }

    // The member's in order(): where they begin, and they themselves.
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
