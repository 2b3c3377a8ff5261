#include "offload/payload_routes.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <numeric>

namespace nearstep::offload {

namespace {

// Turns counts, which follow a leading 0, into start positions and the end.
void add_up(std::vector<std::size_t>& counts) {
    std::partial_sum(counts.begin(), counts.end(), counts.begin());
}

}  // namespace

PayloadRoutes::PayloadRoutes(shard::TileRange tiles, int rank, int group,
                             const MakersAndTakers& ranks_of)
    : rank_(rank),
      groups_(index(ranks_of.groups)),
      for_(index(ranks_of.ranks) + 1),
      of_(index(ranks_of.ranks) + 1) {
    std::vector<int> takers;  // of payloads that this rank makes, by tile
    std::vector<int> makers;  // of payloads that this rank takes, by tile and group
    for (std::size_t tile = tiles.begin; tile < tiles.end; ++tile) {
        const int taker = ranks_of.taker(tile);
        expects(taker >= 0 && taker < ranks_of.ranks, "a rank takes the tile's payloads");
        if (ranks_of.maker(group, tile) == rank) {
            takers.push_back(taker);
            ++for_[index(taker) + 1];
        }
        if (taker != rank) {
            continue;
        }
        taken_.push_back(tile);
        for (int from = 0; from < ranks_of.groups; ++from) {
            makers.push_back(ranks_of.maker(from, tile));
            of_[index(makers.back()) + 1] += makers.back() != rank ? 1U : 0U;
        }
    }
    add_up(for_);
    add_up(of_);
    order_.resize(takers.size());
    std::iota(order_.begin(), order_.end(), 0U);
    std::stable_sort(order_.begin(), order_.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return takers[a] < takers[b]; });
    std::vector<std::size_t> next = of_;
    next[index(rank)] = came();  // kept payloads
    for (const int maker : makers) {
        places_.push_back(static_cast<std::uint32_t>(next[index(maker)]++));
    }
}

std::size_t PayloadRoutes::place_of(std::size_t tile, int group) const {
    const auto found = std::lower_bound(taken_.begin(), taken_.end(), tile);
    expects(found != taken_.end() && *found == tile, "this rank takes the tile's payloads");
    return places_[static_cast<std::size_t>(found - taken_.begin()) * groups_ + index(group)];
}

}  // namespace nearstep::offload
