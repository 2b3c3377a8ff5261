// Which payloads of a block's tiles a rank makes and takes, and in which order they travel.
#pragma once

#include "shard/partition.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace nearstep::offload {

// Who makes the payload of a tile's gradient in each group, and who takes those of all groups; the
// same on all ranks.
struct PayloadWays {
    int ranks = 0;
    int groups = 0;
    std::function<int(int group, std::size_t tile)> maker;  // a rank of the group
    std::function<int(std::size_t tile)> taker;
};

// Of one rank. To each taker go its payloads in ascending order of their tiles, so both sides know
// what comes where. All sizes are in payloads.
class PayloadRoutes {
public:
    // `group`: that of `rank`.
    PayloadRoutes(shard::TileRange tiles, int rank, int group, const PayloadWays& ways);

    // The payloads that this rank makes: each by its tile's number among those that this rank makes
    // payloads of, ascending from 0. By taker, then by tile.
    const std::vector<std::uint32_t>& order() const { return order_; }

    // Where those for a taker begin in order(), and how many there are; this rank's own are kept.
    std::size_t first_for(int taker) const { return for_[index(taker)]; }
    std::size_t count_for(int taker) const { return for_[index(taker) + 1] - first_for(taker); }

    // Of what this rank takes, by maker, then by tile: where a maker's begin, how many there are,
    // and how many there are in all. Those that it makes itself are not among them.
    std::size_t first_of(int maker) const { return of_[index(maker)]; }
    std::size_t count_of(int maker) const { return of_[index(maker) + 1] - first_of(maker); }
    std::size_t came() const { return of_.back(); }
    std::size_t kept() const { return count_for(rank_); }

    // Place of a payload that this rank takes: those that came, behind them those that it kept.
    std::size_t place_of(std::size_t tile, int group) const;

private:
    static std::size_t index(int number) { return static_cast<std::size_t>(number); }

    int rank_;
    std::size_t groups_;
    std::vector<std::uint32_t> order_;
    std::vector<std::size_t> for_;  // and the end
    std::vector<std::size_t> of_;   // and the end
    // Of each tile that this rank takes, ascending, for each group.
    std::vector<std::size_t> taken_;
    std::vector<std::uint32_t> places_;
};

}  // namespace nearstep::offload
