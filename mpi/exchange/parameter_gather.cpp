#include "mpi/exchange/parameter_gather.hpp"

#include "base/error.hpp"
#include "mpi/exchange/relay.hpp"

#include <algorithm>
#include <thread>
#include <utility>

namespace nearstep::exchange {

ParameterGather::ParameterGather(const mpi::Communicator& world, GatherSettings settings,
                                 trace::Traffic& traffic)
    : world_(world),
      settings_(std::move(settings)),
      traffic_(traffic),
      rank_(world.rank()),
      node_(settings_.nodes.group_of[static_cast<std::size_t>(rank_)]),
      node_ranks_(world.split(node_)) {
    expects(settings_.in_flight > 0, "a subgroup can be under way");
    for (std::size_t s = 0; s < settings_.partition->subgroups().size(); ++s) {
        subgroups_.push_back({s, settings_.partition->subgroups()[s].tiles});
    }
}

int ParameterGather::owner_of(std::size_t subgroup) const {
    return shard::owner_of(*settings_.partition, *settings_.devices, subgroup);
}

std::span<std::byte> ParameterGather::place(std::span<std::byte> vector,
                                            shard::TileRange tiles) const {
    const std::size_t tile_bytes = shard::kTileElems * size_bytes(settings_.parameter_dtype);
    return vector.subspan(tiles.begin * tile_bytes, tiles.size() * tile_bytes);
}

ParameterGather::Flight ParameterGather::take_off(std::span<std::byte> vector, const Piece& piece,
                                                  const IsReady& is_ready) {
    Flight flight;
    flight.piece = piece;
    const std::size_t subgroup = piece.subgroup;
    const int owner = owner_of(subgroup);
    const std::span<std::byte> bytes = place(vector, piece.tiles);
    if (owner == rank_) {
        while (!is_ready(subgroup)) {
            make_progress();
            std::this_thread::sleep_for(kPollInterval);
        }
        for (int node = 0; node < settings_.nodes.groups(); ++node) {
            if (node != node_) {
                cross_network(settings_.links, bytes.size(), [this] { make_progress(); });
                flight.to_relays.push_back(world_.start_send(
                    bytes, relay_of(settings_.nodes, node, owner), tag_of(subgroup)));
                traffic_.add(trace::Counter::network_parameters, bytes.size());
            }
        }
    } else if (relay_of(settings_.nodes, node_, owner) == rank_) {
        flight.from_owner = world_.start_receive(bytes, owner, tag_of(subgroup));
    }
    return flight;
}

void ParameterGather::spread_in_node(std::span<std::byte> vector, Flight& flight) {
    flight.from_owner.wait();
    if (node_ranks_.size() == 1 || settings_.are_vectors_shared) {
        return;
    }
    const int source = relay_of(settings_.nodes, node_, owner_of(flight.piece.subgroup));
    const std::vector<int>& ranks = settings_.nodes.ranks_of[static_cast<std::size_t>(node_)];
    const auto root =
        static_cast<int>(std::lower_bound(ranks.begin(), ranks.end(), source) - ranks.begin());
    const std::span<std::byte> bytes = place(vector, flight.piece.tiles);
    flight.in_node = node_ranks_.start_broadcast(bytes, root);
    if (source == rank_) {
        traffic_.add(trace::Counter::node_parameters, bytes.size() * (ranks.size() - 1));
    }
}

// MPI moves data only inside its calls.
void ParameterGather::make_progress() {
    for (std::deque<Flight>* flights : {&between_, &inside_}) {
        for (Flight& flight : *flights) {
            flight.from_owner.test();
            flight.in_node.test();
            for (mpi::Request& request : flight.to_relays) {
                request.test();
            }
        }
    }
}

void ParameterGather::gather(std::span<std::byte> vector, const IsReady& is_ready) {
    move(vector, subgroups_, is_ready);
}

void ParameterGather::bring(std::span<std::byte> vector, std::span<const shard::TileRange> tiles) {
    std::vector<Piece> pieces;
    for (const shard::TileRange range : tiles) {
        for (std::size_t tile = range.begin; tile < range.end;) {
            const std::size_t subgroup = settings_.partition->subgroup_of_tile(tile);
            const std::size_t end = std::min(range.end, subgroups_[subgroup].tiles.end);
            pieces.push_back({subgroup, {tile, end}});
            tile = end;
        }
    }
    move(vector, pieces, [](std::size_t) { return true; });
}

void ParameterGather::move(std::span<std::byte> vector, std::span<const Piece> pieces,
                           const IsReady& is_ready) {
    // With one node nothing travels between nodes and a subgroup goes on at once.
    const std::size_t ahead = settings_.nodes.groups() > 1 ? settings_.in_flight : 1;
    const std::size_t count = pieces.size();
    std::size_t next = 0;
    while (next < count || !between_.empty()) {
        while (next < count && between_.size() < ahead) {
            between_.push_back(take_off(vector, pieces[next], is_ready));
            ++next;
        }
        spread_in_node(vector, between_.front());
        inside_.push_back(std::move(between_.front()));
        between_.pop_front();
        if (inside_.size() > settings_.in_flight) {
            complete_oldest();
        }
    }
    while (!inside_.empty()) {
        complete_oldest();
    }
}

void ParameterGather::complete_oldest() {
    inside_.front().in_node.wait();
    for (mpi::Request& request : inside_.front().to_relays) {
        request.wait();
    }
    inside_.pop_front();
}

}  // namespace nearstep::exchange
