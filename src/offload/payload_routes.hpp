// Which payloads of a block's tiles a rank makes and takes, and in which order they travel.
#pragma once

#include "shard/partition.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace nearstep::offload {

// Which rank of each group makes the payload of a tile, and which rank takes the tile's payloads of
// all groups. The same on all ranks.
struct MakersAndTakers {
    int ranks = 0;
    int groups = 0;
    std::function<int(int group, std::size_t tile)> maker;  // a rank of the group
    std::function<int(std::size_t tile)> taker;
};

// For one rank. Each taker gets its payloads in ascending tile order, so both sides know what
// arrives where. Sizes are in payloads.
class PayloadRoutes {
public:
    // `group` is the group of `rank`.
    PayloadRoutes(shard::TileRange tiles, int rank, int group, const MakersAndTakers& ranks_of);

    // The payloads that this rank makes, sorted by taker, then by tile. Each is a tile's number
    // among the tiles that this rank makes payloads of, from 0.
    const std::vector<std::uint32_t>& order() const { return order_; }

    // Position and number of a taker's payloads in order(). Payloads for this rank itself are kept.
    std::size_t first_for(int taker) const { return for_[index(taker)]; }
    std::size_t count_for(int taker) const { return for_[index(taker) + 1] - first_for(taker); }

    // Payloads that this rank takes from others, sorted by maker, then by tile: position of a
    // maker's, their number, and the total. Payloads that it makes itself are not counted.
    std::size_t first_of(int maker) const { return of_[index(maker)]; }
    std::size_t count_of(int maker) const { return of_[index(maker) + 1] - first_of(maker); }
    std::size_t came() const { return of_.back(); }
    std::size_t kept() const { return count_for(rank_); }

    // Index of a payload that this rank takes. Kept payloads follow those from others.
    std::size_t place_of(std::size_t tile, int group) const;

private:
    static std::size_t index(int number) { return static_cast<std::size_t>(number); }

    int rank_;
    std::size_t groups_;
    std::vector<std::uint32_t> order_;
    std::vector<std::size_t> for_;  // and the end
    std::vector<std::size_t> of_;   // and the end
    // For each tile that this rank takes, ascending, and each group.
    std::vector<std::size_t> taken_;
    std::vector<std::uint32_t> places_;
};

}  // namespace nearstep::offload
