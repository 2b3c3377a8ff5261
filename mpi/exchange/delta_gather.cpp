#include "mpi/exchange/delta_gather.hpp"

#include "base/error.hpp"
#include "mpi/exchange/relay.hpp"

#include <algorithm>
#include <thread>
#include <utility>

namespace nearstep::exchange {

namespace {

// Lets the requests make progress; true once all are complete.
bool test_all(std::vector<mpi::Request>& requests) {
    std::erase_if(requests, [](mpi::Request& request) { return request.test(); });
    return requests.empty();
}

void wait_all(std::vector<mpi::Request>& requests) {
    for (mpi::Request& request : requests) {
        request.wait();
    }
    requests.clear();
}

}  // namespace

DeltaGather::DeltaGather(const mpi::Communicator& world, GatherSettings settings,
                         trace::Traffic& traffic)
    : world_(world),
      settings_(std::move(settings)),
      traffic_(traffic),
      rank_(world.rank()),
      node_(settings_.nodes.group_of[static_cast<std::size_t>(rank_)]) {
    expects(settings_.in_flight > 0, "a subgroup can be under way");
    expects(size_bytes(settings_.parameter_dtype) == sizeof(std::uint16_t),
            "deltas are of 16-bit parameters");
    std::size_t most_tiles = 0;
    for (std::size_t s = 0; s < settings_.partition->subgroups().size(); ++s) {
        if (owner_of(s) == rank_) {
            own_.push_back(s);
        } else if (!settings_.are_vectors_shared ||
                   relay_of(settings_.nodes, node_, owner_of(s)) == rank_) {
            foreign_.push_back(s);
            most_tiles = std::max(most_tiles, settings_.partition->subgroups()[s].tiles.size());
        }
    }
    slots_.resize(std::min(settings_.in_flight, foreign_.size()));
    const std::size_t room_bytes = codec::message_room_bytes(most_tiles);
    memory_ = memory::Buffer(slots_.size() * room_bytes);
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        slots_[i].room = memory_.span().subspan(i * room_bytes, room_bytes);
    }
}

int DeltaGather::owner_of(std::size_t subgroup) const {
    return shard::owner_of(*settings_.partition, *settings_.devices, subgroup);
}

// The rank that sends the subgroup to this one.
int DeltaGather::source_of(std::size_t subgroup) const {
    const int owner = owner_of(subgroup);
    const int relay = relay_of(settings_.nodes, node_, owner);
    return relay == rank_ ? owner : relay;
}

void DeltaGather::spread_in_node(std::span<const std::byte> message, std::size_t subgroup,
                                 std::vector<mpi::Request>& requests) {
    if (settings_.are_vectors_shared) {
        return;
    }
    for (const int rank : settings_.nodes.ranks_of[static_cast<std::size_t>(node_)]) {
        if (rank != rank_) {
            requests.push_back(world_.start_send(message, rank, tag_of(subgroup)));
            traffic_.add(trace::Counter::node_parameters, message.size());
        }
    }
}

void DeltaGather::apply(const codec::DeltaReader& reader, std::size_t subgroup) {
    constexpr std::size_t kTileBytes = shard::kTileElems * sizeof(std::uint16_t);
    const shard::TileRange tiles = settings_.partition->subgroups()[subgroup].tiles;
    auto fault =
        reader.apply_to(vector_.subspan(tiles.begin * kTileBytes, tiles.size() * kTileBytes));
    if (fault && !fault_) {
        fault_ = text("Rank ", rank_, ": ", *fault);
    }
}

// Posts receives in forward order, each into the slot that was used the longest time ago. Never
// waits: waiting for others before sending this rank's messages could deadlock.
void DeltaGather::post_receives() {
    while (next_foreign_ < foreign_.size() && arrivals_.size() < slots_.size()) {
        Slot& slot = slots_[next_foreign_ % slots_.size()];
        if (!test_all(slot.onward)) {
            return;
        }
        const std::size_t subgroup = foreign_[next_foreign_];
        arrivals_.push_back(
            {subgroup, &slot,
             world_.start_receive(slot.room, source_of(subgroup), tag_of(subgroup))});
        ++next_foreign_;
    }
}

// Sends to the nodes in turn as the network allows; false until all are done.
bool DeltaGather::leave_node(std::span<const std::byte> message, int tag) {
    for (; next_node_ < settings_.nodes.groups(); ++next_node_) {
        if (next_node_ == node_) {
            continue;
        }
        if (!has_crossed(settings_.links, message.size(), crossing_)) {
            return false;
        }
        sends_.push_back(
            world_.start_send(message, relay_of(settings_.nodes, next_node_, rank_), tag));
        traffic_.add(trace::Counter::network_parameters, message.size());
    }
    return true;
}

// Sends this rank's next subgroup if its message is ready and the network allows.
bool DeltaGather::send_next() {
    const std::size_t subgroup = own_[next_own_];
    const std::span<const std::byte> room = find_message_(subgroup);
    if (room.empty()) {
        return false;
    }
    const codec::DeltaReader reader(room, settings_.partition->subgroups()[subgroup].tiles);
    const std::span<const std::byte> message = room.first(reader.bytes());
    if (!leave_node(message, tag_of(subgroup))) {
        return false;
    }
    next_node_ = 0;
    spread_in_node(message, subgroup, sends_);
    reader.add_to(tally_);
    apply(reader, subgroup);
    ++next_own_;
    return true;
}

// Takes the next arrival in forward order if it is complete or waiting is allowed.
bool DeltaGather::take_arrival(bool may_wait) {
    if (arrivals_.empty()) {
        // The slots are still being relayed, or nothing more will arrive.
        if (may_wait && next_foreign_ < foreign_.size()) {
            wait_all(slots_[next_foreign_ % slots_.size()].onward);
        }
        return may_wait;
    }
    Arrival& arrival = arrivals_.front();
    if (may_wait) {
        arrival.from_source.wait();
    } else if (!arrival.from_source.test()) {
        return false;
    }
    const std::size_t subgroup = arrival.subgroup;
    const codec::DeltaReader reader(arrival.slot->room,
                                    settings_.partition->subgroups()[subgroup].tiles);
    if (relay_of(settings_.nodes, node_, owner_of(subgroup)) == rank_) {
        spread_in_node(arrival.slot->room.first(reader.bytes()), subgroup, arrival.slot->onward);
    }
    apply(reader, subgroup);
    arrivals_.pop_front();
    return true;
}

void DeltaGather::begin(std::span<std::byte> vector, FindMessage find_message) {
    expects(arrivals_.empty() && sends_.empty(), "a gather is finished before the next one begins");
    vector_ = vector;
    find_message_ = std::move(find_message);
    next_own_ = 0;
    next_foreign_ = 0;
}

// Sends one message and takes one, if ready; false if neither was. Waits for an arrival only when
// there is nothing left to send.
bool DeltaGather::move_on(bool may_wait) {
    post_receives();
    const bool is_sending = next_own_ < own_.size();
    const bool has_sent = is_sending && send_next();
    const bool has_taken = take_arrival(may_wait && !is_sending);
    return has_sent || has_taken;
}

void DeltaGather::poll() {
    test_all(sends_);
    while (move_on(false)) {
    }
}

// How many of the ascending subgroups begin before tile `end`.
std::size_t DeltaGather::before(const std::vector<std::size_t>& subgroups, std::size_t end) const {
    const auto first_behind =
        std::partition_point(subgroups.begin(), subgroups.end(), [&](std::size_t subgroup) {
            return settings_.partition->subgroups()[subgroup].tiles.begin < end;
        });
    return static_cast<std::size_t>(first_behind - subgroups.begin());
}

void DeltaGather::advance(std::size_t end) {
    const std::size_t own = before(own_, end);
    const std::size_t foreign = before(foreign_, end);
    while (next_own_ < own || next_foreign_ - arrivals_.size() < foreign) {
        if (!move_on(true)) {
            test_all(sends_);
            std::this_thread::sleep_for(kPollInterval);
        }
    }
}

void DeltaGather::finish() {
    advance(settings_.partition->tiles());
    wait_all(sends_);
    for (Slot& slot : slots_) {
        wait_all(slot.onward);
    }
    // Throw only now: other ranks have received this rank's messages.
    if (fault_) {
        throw Error(*fault_);
    }
}

}  // namespace nearstep::exchange
