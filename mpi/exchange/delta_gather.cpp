#include "mpi/exchange/delta_gather.hpp"

#include "base/error.hpp"
#include "mpi/exchange/relay.hpp"

#include <algorithm>
#include <thread>
#include <utility>

namespace nearstep::exchange {

namespace {

// True once all are complete; makes progress.
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

void DeltaGather::apply(const codec::DeltaReader& reader, std::span<std::byte> vector,
                        std::size_t subgroup) {
    constexpr std::size_t kTileBytes = shard::kTileElems * sizeof(std::uint16_t);
    const shard::TileRange tiles = settings_.partition->subgroups()[subgroup].tiles;
    auto fault =
        reader.apply_to(vector.subspan(tiles.begin * kTileBytes, tiles.size() * kTileBytes));
    if (fault && !fault_) {
        fault_ = text("Rank ", rank_, ": ", *fault);
    }
}

// In forward order, each into the slot that is free the longest. Never waits: a rank that waits for
// another to take a message before it has sent its own could wait for ever.
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

// Sends the next of this rank's subgroups if its message is there.
bool DeltaGather::send_next(std::span<std::byte> vector, const FindMessage& find_message) {
    const std::size_t subgroup = own_[next_own_];
    const std::span<const std::byte> room = find_message(subgroup);
    if (room.empty()) {
        return false;
    }
    const codec::DeltaReader reader(room, settings_.partition->subgroups()[subgroup].tiles);
    const std::span<const std::byte> message = room.first(reader.bytes());
    for (int node = 0; node < settings_.nodes.groups(); ++node) {
        if (node != node_) {
            const int relay = relay_of(settings_.nodes, node, rank_);
            cross_network(settings_.links, message.size(), [this] { test_all(sends_); });
            sends_.push_back(world_.start_send(message, relay, tag_of(subgroup)));
            traffic_.add(trace::Counter::network_parameters, message.size());
        }
    }
    spread_in_node(message, subgroup, sends_);
    reader.add_to(tally_);
    apply(reader, vector, subgroup);
    ++next_own_;
    return true;
}

// Takes the first arrival in forward order, if it is there or may be waited for.
bool DeltaGather::take_arrival(std::span<std::byte> vector, bool may_wait) {
    if (arrivals_.empty()) {
        // The slots are still being sent on, or there is nothing to come.
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
    apply(reader, vector, subgroup);
    arrivals_.pop_front();
    return true;
}

void DeltaGather::finish() {
    wait_all(sends_);
    for (Slot& slot : slots_) {
        wait_all(slot.onward);
    }
}

void DeltaGather::gather(std::span<std::byte> vector, const FindMessage& find_message) {
    next_own_ = 0;
    next_foreign_ = 0;
    while (next_own_ < own_.size() || next_foreign_ < foreign_.size() || !arrivals_.empty()) {
        post_receives();
        const bool is_sending = next_own_ < own_.size();
        const bool has_sent = is_sending && send_next(vector, find_message);
        const bool has_taken = take_arrival(vector, !is_sending);
        if (!has_sent && !has_taken) {
            test_all(sends_);
            std::this_thread::sleep_for(kPollInterval);
        }
    }
    finish();
    // Not sooner, so that the other ranks, who wait for this one's messages, find theirs.
    if (fault_) {
        throw Error(*fault_);
    }
}

}  // namespace nearstep::exchange
