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
      node_ranks_(world.split(node_)),
      // With one node nothing travels between nodes, and a subgroup moves on at once.
      ahead_(settings_.nodes.groups() > 1 ? settings_.in_flight : 1) {
    expects(settings_.in_flight > 0, "a subgroup can be under way");
    for (std::size_t s = 0; s < settings_.partition->subgroups().size(); ++s) {
        subgroups_.push_back({s, settings_.partition->subgroups()[s].tiles});
    }
}

int ParameterGather::owner_of(std::size_t subgroup) const {
    return shard::owner_of(*settings_.partition, *settings_.devices, subgroup);
}

std::span<std::byte> ParameterGather::place(shard::TileRange tiles) const {
    const std::size_t tile_bytes = shard::kTileElems * size_bytes(settings_.parameter_dtype);
    return vector_.subspan(tiles.begin * tile_bytes, tiles.size() * tile_bytes);
}

// Sends to the nodes in turn as the network allows; false until all are done.
bool ParameterGather::leave_node(std::span<const std::byte> bytes, int owner, int tag) {
    for (; next_node_ < settings_.nodes.groups(); ++next_node_) {
        if (next_node_ == node_) {
            continue;
        }
        if (!has_crossed(settings_.links, bytes.size(), crossing_)) {
            return false;
        }
        departing_.to_relays.push_back(
            world_.start_send(bytes, relay_of(settings_.nodes, next_node_, owner), tag));
        traffic_.add(trace::Counter::network_parameters, bytes.size());
    }
    return true;
}

// Begins the next piece; false if its device or the network is not ready.
bool ParameterGather::take_off() {
    departing_.piece = pieces_[next_];
    const std::size_t subgroup = departing_.piece.subgroup;
    const int owner = owner_of(subgroup);
    const std::span<std::byte> bytes = place(departing_.piece.tiles);
    if (owner == rank_) {
        if (!is_ready_(subgroup) || !leave_node(bytes, owner, tag_of(subgroup))) {
            return false;
        }
    } else if (relay_of(settings_.nodes, node_, owner) == rank_) {
        departing_.from_owner = world_.start_receive(bytes, owner, tag_of(subgroup));
    }
    between_.push_back(std::exchange(departing_, Flight()));
    next_node_ = 0;
    ++next_;
    return true;
}

// Begins as many pieces as possible; false if the next one is not ready.
bool ParameterGather::take_off_ready() {
    while (next_ < pieces_.size() && between_.size() < ahead_) {
        if (!take_off()) {
            return false;
        }
    }
    return true;
}

void ParameterGather::spread_in_node(Flight& flight) {
    if (node_ranks_.size() == 1 || settings_.are_vectors_shared) {
        return;
    }
    const int source = relay_of(settings_.nodes, node_, owner_of(flight.piece.subgroup));
    const std::vector<int>& ranks = settings_.nodes.ranks_of[static_cast<std::size_t>(node_)];
    const auto root =
        static_cast<int>(std::lower_bound(ranks.begin(), ranks.end(), source) - ranks.begin());
    const std::span<std::byte> bytes = place(flight.piece.tiles);
    flight.in_node = node_ranks_.start_broadcast(bytes, root);
    if (source == rank_) {
        traffic_.add(trace::Counter::node_parameters, bytes.size() * (ranks.size() - 1));
    }
}

// Moves the oldest piece, which has arrived at this node, on to the node's ranks.
void ParameterGather::enter_node() {
    spread_in_node(between_.front());
    inside_.push_back(std::move(between_.front()));
    between_.pop_front();
    ++entered_;
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

void ParameterGather::begin(std::span<std::byte> vector, IsReady is_ready) {
    begin(vector, subgroups_, std::move(is_ready));
}

void ParameterGather::begin(std::span<std::byte> vector, std::span<const Piece> pieces,
                            IsReady is_ready) {
    expects(between_.empty() && inside_.empty(), "a gather is finished before the next one begins");
    vector_ = vector;
    pieces_ = pieces;
    is_ready_ = std::move(is_ready);
    next_ = 0;
    entered_ = 0;
}

void ParameterGather::poll() {
    make_progress();
    while (!inside_.empty() && is_complete(inside_.front())) {
        inside_.pop_front();
    }
    take_off_ready();
    while (!between_.empty() && inside_.size() < settings_.in_flight &&
           between_.front().from_owner.test()) {
        enter_node();
        take_off_ready();
    }
}

bool ParameterGather::is_complete(Flight& flight) {
    return flight.in_node.test() &&
           std::all_of(flight.to_relays.begin(), flight.to_relays.end(),
                       [](mpi::Request& request) { return request.test(); });
}

void ParameterGather::advance(std::size_t end) {
    const auto piece = std::partition_point(pieces_.begin(), pieces_.end(),
                                            [end](const Piece& p) { return p.tiles.begin < end; });
    advance_to_piece(static_cast<std::size_t>(piece - pieces_.begin()));
}

void ParameterGather::advance_to_piece(std::size_t piece) {
    while (entered_ < piece) {
        const bool may_wait = take_off_ready();
        if (!may_wait && (between_.empty() || !between_.front().from_owner.test())) {
            // Keep other transfers moving while this rank's device or network is not ready.
            make_progress();
            std::this_thread::sleep_for(kPollInterval);
            continue;
        }
        between_.front().from_owner.wait();
        enter_node();
        if (inside_.size() > settings_.in_flight) {
            complete_oldest();
        }
    }
    const std::size_t completed = entered_ - inside_.size();
    for (std::size_t i = completed; i < piece; ++i) {
        inside_[i - completed].in_node.wait();
    }
}

void ParameterGather::finish() {
    advance_to_piece(pieces_.size());
    while (!inside_.empty()) {
        complete_oldest();
    }
}

void ParameterGather::bring(std::span<std::byte> vector, std::span<const shard::TileRange> tiles,
                            IsReady is_ready) {
    brought_.clear();
    for (const shard::TileRange range : tiles) {
        for (std::size_t tile = range.begin; tile < range.end;) {
            const std::size_t subgroup = settings_.partition->subgroup_of_tile(tile);
            const std::size_t end = std::min(range.end, subgroups_[subgroup].tiles.end);
            brought_.push_back({subgroup, {tile, end}});
            tile = end;
        }
    }
    begin(vector, brought_, std::move(is_ready));
    finish();
}

void ParameterGather::complete_oldest() {
    inside_.front().in_node.wait();
    for (mpi::Request& request : inside_.front().to_relays) {
        request.wait();
    }
    inside_.pop_front();
}

}  // namespace nearstep::exchange
