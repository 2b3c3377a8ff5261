// Brings new parameters from their owners to all ranks while the client computes. Used by offload's
// step.
#include "mpi/exchange/parameter_gather.hpp"

#include "base/error.hpp"
#include "base/statistics.hpp"
#include "mpi/exchange/routes.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

namespace nearstep::exchange {

namespace {

// Short compared with the update of a subgroup, long compared with polling the pending transfers.
constexpr std::chrono::microseconds kPollInterval{20};

// MPI tag of messages with this subgroup (a position in Partition::subgroups()).
int tag_of(std::size_t subgroup) {
    return static_cast<int>(subgroup % 32768);  // MPI promises tags up to 32767
}

// True once the shaped network has let `bytes` through, so that they may be sent; at once if
// `links` is null. `crossing` keeps the progress between calls: empty before the first and after
// the last.
bool has_crossed(const shaping::NodeLinks* links, std::size_t bytes,
                 std::optional<shaping::Crossing>& crossing) {
    if (links == nullptr) {
        return true;
    }
    const shaping::Time now = links->clock().now();
    if (!crossing) {
        crossing.emplace(links->network(), now, bytes);
    }
    if (!crossing->is_over(now)) {
        return false;
    }
    crossing.reset();
    return true;
}

// MPI moves data only inside its calls; one call moves that of all requests. True once all are
// complete.
bool test_all(std::vector<mpi::Request>& requests) {
    const auto pending =
        std::ranges::find_if(requests, [](mpi::Request& request) { return !request.test(); });
    requests.erase(requests.begin(), pending);
    return requests.empty();
}

void wait_all(std::vector<mpi::Request>& requests) {
    for (mpi::Request& request : requests) {
        request.wait();
    }
    requests.clear();
}

// How many of the ascending pieces begin before tile `end`.
template <typename Pieces>
std::size_t before(const Pieces& pieces, std::size_t end) {
    const auto behind = std::partition_point(
        pieces.begin(), pieces.end(), [&](const auto& one) { return one.tiles.begin < end; });
    return static_cast<std::size_t>(behind - pieces.begin());
}

}  // namespace

ParameterGather::ParameterGather(const mpi::Communicator& world, ParameterGatherSettings settings,
                                 trace::Traffic& traffic)
    : world_(world),
      settings_(std::move(settings)),
      traffic_(traffic),
      rank_(world.rank()),
      node_(settings_.nodes.group_of[static_cast<std::size_t>(rank_)]) {
    if (settings_.sources.empty()) {
        for (const shard::Subgroup& subgroup : settings_.partition->subgroups()) {
            settings_.sources.push_back(settings_.devices->rank_of(subgroup.device));
        }
    }
    if (settings_.vectors.group_of.empty()) {
        settings_.vectors = mpi::each_rank_alone(world.size());
    }
    slots_ =
        std::vector<RelaySlot>(settings_.in_flight > 0 ? settings_.in_flight : enough_in_flight());
    for (std::size_t s = 0; s < settings_.partition->subgroups().size(); ++s) {
        subgroups_.push_back({s, settings_.partition->subgroups()[s].tiles});
    }
    if (settings_.has_deltas) {
        make_slots();
    }
}

// One subgroup of each device is on its way to the node at a time: more would share the links with
// those that the forward waits for first. The ranks that share a vector divide the devices. A rank
// with a vector of its own has two subgroups of each device in flight, since it also waits for
// other ranks of its node. With deltas it has one, since they take memory while in flight.
std::size_t ParameterGather::enough_in_flight() const {
    constexpr std::size_t kLeast = 8;
    const std::size_t sharing = settings_.vectors.ranks_beside(rank_).size();
    const std::size_t of_each = sharing == 1 && !settings_.has_deltas ? 2 : 1;
    return std::max(kLeast,
                    of_each * static_cast<std::size_t>(settings_.devices->devices()) / sharing);
}

void ParameterGather::make_slots() {
    expects(size_bytes(settings_.parameter_dtype) == sizeof(std::uint16_t),
            "deltas are of 16-bit parameters");
    begin({}, subgroups_, false, {});
    std::size_t most_tiles = 0;
    for (const GatherPiece& piece : foreign_) {
        most_tiles = std::max(most_tiles, piece.tiles.size());
    }
    const std::size_t room_bytes = codec::message_room_bytes(most_tiles);
    slots_.resize(std::min(slots_.size(), foreign_.size()));
    memory_ = memory::Buffer(slots_.size() * room_bytes);
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        slots_[i].room = memory_.span().subspan(i * room_bytes, room_bytes);
    }
    own_.clear();
    foreign_.clear();
}

// The rank of this node that has the piece first.
int ParameterGather::relay_here(const GatherPiece& piece) const {
    return relay_of(settings_.nodes, node_, owner_of(piece));
}

// Whether this rank of the node writes the piece to its vector: the relay, or another's vector's
// rank that the relay sends it to.
bool ParameterGather::writes(int rank, const GatherPiece& piece) const {
    const int relay = relay_here(piece);
    const int vector = settings_.vectors.group_of[static_cast<std::size_t>(rank)];
    const bool is_relays = settings_.vectors.group_of[static_cast<std::size_t>(relay)] == vector;
    return rank == (is_relays ? relay : relay_of(settings_.vectors, vector, owner_of(piece)));
}

std::span<std::byte> ParameterGather::place(const GatherPiece& piece) const {
    const std::size_t tile_bytes = shard::kTileElems * size_bytes(settings_.parameter_dtype);
    return vector_.subspan(piece.tiles.begin * tile_bytes, piece.tiles.size() * tile_bytes);
}

// Returns the memory in which the piece arrives.
std::span<std::byte> ParameterGather::room_of(const RelaySlot& slot,
                                              const GatherPiece& piece) const {
    return are_deltas_ ? slot.room : place(piece);
}

// `room`: memory that begins with the message.
ParameterGather::Message ParameterGather::read(std::span<const std::byte> room,
                                               const GatherPiece& piece) const {
    if (!are_deltas_) {
        return {.bytes = room};
    }
    const codec::DeltaReader reader(room, piece.tiles);
    return {.bytes = room.first(reader.bytes()), .deltas = reader};
}

void ParameterGather::spread_in_node(const Message& message, const GatherPiece& piece,
                                     std::vector<mpi::Request>& requests) {
    if (!reads()) {
        return;
    }
    for (const int rank : settings_.nodes.ranks_of[static_cast<std::size_t>(node_)]) {
        if (rank != rank_ && writes(rank, piece)) {
            requests.push_back(world_.start_send(message.bytes, rank, tag_of(piece.subgroup)));
            traffic_.add(trace::Counter::node_parameters, message.bytes.size());
        }
    }
}

// Parameters are in place already.
void ParameterGather::apply(const Message& message, const GatherPiece& piece) {
    auto fault = message.deltas ? message.deltas->apply_to(place(piece)) : std::nullopt;
    if (fault && !fault_) {
        fault_ = text("Rank ", rank_, ": ", *fault);
    }
}

// Posts receives in forward order. A slot is used again when its last message has been relayed.
// This function never waits: waiting for others before sending this rank's messages could deadlock.
void ParameterGather::post_receives() {
    while (next_foreign_ < foreign_.size() && arrivals_.size() < slots_.size()) {
        RelaySlot& slot = slots_[next_foreign_ % slots_.size()];
        if (!test_all(slot.onward)) {
            return;
        }
        const GatherPiece& piece = foreign_[next_foreign_++];
        const int relay = relay_here(piece);
        arrivals_.push_back(
            {piece, &slot,
             world_.start_receive(room_of(slot, piece), relay == rank_ ? owner_of(piece) : relay,
                                  tag_of(piece.subgroup))});
    }
}

// Sends to the nodes in turn as the network allows; false until all are done.
bool ParameterGather::leave_node(const Message& message, int tag) {
    for (; next_node_ < reading_nodes(); ++next_node_) {
        if (next_node_ == node_) {
            continue;
        }
        if (!has_crossed(settings_.links, message.bytes.size(), crossing_)) {
            return false;
        }
        sends_.push_back(
            world_.start_send(message.bytes, relay_of(settings_.nodes, next_node_, rank_), tag));
        traffic_.add(trace::Counter::network_parameters, message.bytes.size());
    }
    return true;
}

// Sends this rank's next piece if it is ready and the network allows.
bool ParameterGather::send_next() {
    const GatherPiece& piece = own_[next_own_];
    const std::span<const std::byte> room = find_(piece);
    if (room.empty()) {
        return false;
    }
    const Message message = read(room, piece);
    if (!leave_node(message, tag_of(piece.subgroup))) {
        return false;
    }
    next_node_ = 0;
    spread_in_node(message, piece, sends_);
    if (message.deltas) {
        message.deltas->add_to(tally_);
    }
    apply(message, piece);
    ++next_own_;
    return true;
}

// A slow update or network delays the parameters of all ranks alike; then nobody is late.
void ParameterGather::wait_for_first() {
    const int source = owner_of(arrivals_.front().piece);
    std::size_t others = 0;
    std::size_t here = 0;
    for (Arrival& arrival : arrivals_) {
        if (owner_of(arrival.piece) != source) {
            ++others;
            here += arrival.from_source.test() ? 1 : 0;
        }
    }
    const double waited = seconds_of([&] { arrivals_.front().from_source.wait(); });
    waits_.all += waited;
    if (2 * here >= others) {
        waits_.for_late[source] += waited;
    }
}

// Takes the next arrival in forward order if it is complete or waiting is allowed.
bool ParameterGather::take_arrival(bool may_wait) {
    if (arrivals_.empty()) {
        // The slots are still being relayed, or nothing more will arrive.
        if (may_wait && next_foreign_ < foreign_.size()) {
            wait_all(slots_[next_foreign_ % slots_.size()].onward);
        }
        return may_wait;
    }
    Arrival& arrival = arrivals_.front();
    if (may_wait) {
        wait_for_first();
    } else if (!arrival.from_source.test()) {
        return false;
    }
    const GatherPiece& piece = arrival.piece;
    const Message message = read(room_of(*arrival.slot, piece), piece);
    if (relay_here(piece) == rank_) {
        spread_in_node(message, piece, arrival.slot->onward);
    }
    apply(message, piece);
    arrivals_.pop_front();
    return true;
}

void ParameterGather::begin(std::span<std::byte> vector, std::span<const GatherPiece> pieces,
                            bool are_deltas, Find find) {
    expects(arrivals_.empty() && sends_.empty(), "a gather is finished before the next one begins");
    vector_ = vector;
    are_deltas_ = are_deltas;
    find_ = std::move(find);
    next_own_ = 0;
    next_foreign_ = 0;
    own_.clear();
    foreign_.clear();
    for (const GatherPiece& piece : pieces) {
        if (owner_of(piece) == rank_) {
            own_.push_back(piece);
        } else if (reads() && writes(rank_, piece)) {
            foreign_.push_back(piece);
        }
    }
}

ParameterGather::Find ParameterGather::in_place(IsReady is_ready) const {
    return [this, is_ready = std::move(is_ready)](const GatherPiece& piece) {
        return is_ready(piece.subgroup) ? place(piece) : std::span<std::byte>();
    };
}

void ParameterGather::begin(std::span<std::byte> vector, IsReady is_ready) {
    begin(vector, subgroups_, false, in_place(std::move(is_ready)));
}

void ParameterGather::begin_deltas(std::span<std::byte> vector, FindMessage find_message) {
    expects(settings_.has_deltas, "a gather of deltas has slots");
    begin(vector, subgroups_, true, [find = std::move(find_message)](const GatherPiece& piece) {
        return find(piece.subgroup);
    });
}

// Sends one piece and takes one, if ready; false if neither was. Waits for an arrival only when
// there is nothing left to send.
bool ParameterGather::move_on(bool may_wait) {
    post_receives();
    const bool is_sending = next_own_ < own_.size();
    const bool has_sent = is_sending && send_next();
    const bool has_taken = take_arrival(may_wait && !is_sending);
    return has_sent || has_taken;
}

void ParameterGather::poll() {
    test_all(sends_);
    while (move_on(false)) {
    }
}

void ParameterGather::advance(std::size_t end) {
    const std::size_t own = before(own_, end);
    const std::size_t foreign = before(foreign_, end);
    while (next_own_ < own || next_foreign_ - arrivals_.size() < foreign) {
        if (!move_on(true)) {
            test_all(sends_);
            std::this_thread::sleep_for(kPollInterval);
        }
    }
}

void ParameterGather::finish() {
    advance(settings_.partition->tiles());
    wait_all(sends_);
    for (RelaySlot& slot : slots_) {
        wait_all(slot.onward);
    }
    // Throw only now: other ranks have received this rank's pieces.
    if (fault_) {
        throw Error(*fault_);
    }
}

void ParameterGather::bring(std::span<std::byte> vector, std::span<const shard::TileRange> tiles,
                            IsReady is_ready) {
    std::vector<GatherPiece> pieces;
    for (const shard::TileRange range : tiles) {
        for (std::size_t tile = range.begin; tile < range.end;) {
            const std::size_t subgroup = settings_.partition->subgroup_of_tile(tile);
            const std::size_t end = std::min(range.end, subgroups_[subgroup].tiles.end);
            pieces.push_back({subgroup, {tile, end}});
            tile = end;
        }
    }
    begin(vector, pieces, false, in_place(std::move(is_ready)));
    finish();
}

}  // namespace nearstep::exchange
