#include "mpi/exchange/node_spread.hpp"

#include "mpi/exchange/relay.hpp"

#include <algorithm>
#include <utility>

namespace nearstep::exchange {

namespace {

// True if ranks of one node belong to different copies.
bool have_copies_met(const shard::Ownership& owners, const mpi::Topology& nodes) {
    return std::any_of(nodes.ranks_of.begin(), nodes.ranks_of.end(),
                       [&](const std::vector<int>& ranks) {
                           return std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
                               return owners.copy_of(rank) != owners.copy_of(ranks.front());
                           });
                       });
}

}  // namespace

NodeSpread::NodeSpread(const mpi::Communicator& world, const shard::Ownership& owners,
                       const mpi::Topology& nodes, std::span<const shard::TileRange> rounds,
                       std::size_t most_bytes, trace::Traffic& traffic)
    : owners_(owners),
      nodes_(nodes),
      traffic_(traffic),
      rank_(world.rank()),
      node_(nodes.group_of[static_cast<std::size_t>(rank_)]),
      is_needed_(have_copies_met(owners, nodes)),
      node_ranks_(world.split(node_)) {
    std::size_t most_out = 0;
    std::size_t most_in = 0;
    for (const shard::TileRange round : rounds) {
        std::size_t out = 0;
        std::size_t in = 0;
        for (const int rank : nodes_.ranks_of[static_cast<std::size_t>(node_)]) {
            out += passed(round, rank_, rank).size();
            in += passed(round, rank, rank_).size();
        }
        most_out = std::max(most_out, out);
        most_in = std::max(most_in, in);
    }
    out_.resize(most_out * most_bytes);
    in_.resize(most_in * most_bytes);
}

std::vector<std::size_t> NodeSpread::passed(shard::TileRange tiles, int from, int to) const {
    std::vector<std::size_t> found;
    for (std::size_t tile = tiles.begin; is_needed_ && from != to && tile < tiles.end; ++tile) {
        if (owners_.owns(to, tile) && entry_of(owners_, nodes_, node_, tile) == from) {
            found.push_back(tile);
        }
    }
    return found;
}

std::vector<TilePayloads> NodeSpread::pass_on(shard::TileRange tiles,
                                              std::vector<TilePayloads> here, std::size_t sources,
                                              std::size_t payload_bytes) {
    if (!is_needed_) {
        return here;
    }
    const std::size_t tile_bytes = sources * payload_bytes;
    std::vector<TilePayloads> owned = here;
    mpi::Blocks out;
    mpi::Blocks in;
    auto place = out_.begin();
    std::size_t arriving = 0;
    for (const int rank : nodes_.ranks_of[static_cast<std::size_t>(node_)]) {
        const std::vector<std::size_t> leaving = passed(tiles, rank_, rank);
        for (const TilePayloads& one : here) {
            if (std::binary_search(leaving.begin(), leaving.end(), one.tile)) {
                for (const std::span<const std::byte> payload : one.payloads) {
                    place = std::copy(payload.begin(), payload.end(), place);
                }
            }
        }
        out.bytes.push_back(leaving.size() * tile_bytes);
        traffic_.add(trace::Counter::node_gradients, out.bytes.back());
        const std::vector<std::size_t> coming = passed(tiles, rank, rank_);
        in.bytes.push_back(coming.size() * tile_bytes);
        for (const std::size_t tile : coming) {
            TilePayloads& one = owned.emplace_back(TilePayloads{.tile = tile, .payloads = {}});
            for (std::size_t source = 0; source < sources; ++source) {
                one.payloads.emplace_back(std::span(in_).subspan(arriving, payload_bytes));
                arriving += payload_bytes;
            }
        }
    }
    node_ranks_.all_to_all(out_, out, in_, in);
    return owned;
}

}  // namespace nearstep::exchange
