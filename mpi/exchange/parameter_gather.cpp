#include "mpi/exchange/parameter_gather.hpp"

#include "base/error.hpp"
#include "mpi/exchange/relay.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace nearstep::exchange {

namespace {

// Short against the update of a subgroup, long against a look at the pending transfers.
constexpr std::chrono::microseconds kPollInterval{20};

}  // namespace

ParameterGather::ParameterGather(const mpi::Communicator& world, GatherSettings settings,
                                 trace::Traffic& traffic)
    : world_(world),
      settings_(std::move(settings)),
      traffic_(traffic),
      rank_(world.rank()),
      node_(settings_.nodes.group_of[static_cast<std::size_t>(rank_)]),
      node_ranks_(world.split(node_)) {
    expects(settings_.in_flight > 0, "a subgroup can be under way");
}

std::span<std::byte> ParameterGather::place(std::span<std::byte> vector,
                                            std::size_t subgroup) const {
    const shard::TileRange tiles = settings_.partition->subgroups()[subgroup].tiles;
    const std::size_t tile_bytes = shard::kTileElems * size_bytes(settings_.parameter_dtype);
    return vector.subspan(tiles.begin * tile_bytes, tiles.size() * tile_bytes);
}

ParameterGather::Flight ParameterGather::take_off(std::span<std::byte> vector, std::size_t subgroup,
                                                  const IsReady& is_ready) {
    Flight flight;
    flight.subgroup = subgroup;
    const int owner = settings_.devices->rank_of(settings_.partition->subgroups()[subgroup].device);
    const int tag = static_cast<int>(subgroup % 32768);  // MPI promises tags up to 32767
    const std::span<std::byte> bytes = place(vector, subgroup);
    if (owner == rank_) {
        while (!is_ready(subgroup)) {
            make_progress();
            std::this_thread::sleep_for(kPollInterval);
        }
        for (int node = 0; node < settings_.nodes.groups(); ++node) {
            if (node != node_) {
                cross_network(bytes.size());
                flight.to_relays.push_back(
                    world_.start_send(bytes, relay_of(settings_.nodes, node, owner), tag));
                traffic_.add(trace::Counter::network_parameters, bytes.size());
            }
        }
    } else if (relay_of(settings_.nodes, node_, owner) == rank_) {
        flight.from_owner = world_.start_receive(bytes, owner, tag);
    }
    return flight;
}

// A message is sent when the network has let its bytes through; what is under way goes on.
void ParameterGather::cross_network(std::size_t bytes) {
    if (settings_.links == nullptr) {
        return;
    }
    const link::Clock& clock = settings_.links->clock();
    link::Crossing crossing(settings_.links->network(), clock.now(), bytes);
    while (!crossing.is_over(clock.now())) {
        make_progress();
        std::this_thread::sleep_for(kPollInterval);
    }
}

void ParameterGather::spread_in_node(std::span<std::byte> vector, Flight& flight) {
    flight.from_owner.wait();
    if (node_ranks_.size() == 1) {
        return;
    }
    const int owner =
        settings_.devices->rank_of(settings_.partition->subgroups()[flight.subgroup].device);
    const int source = relay_of(settings_.nodes, node_, owner);
    const std::vector<int>& ranks = settings_.nodes.ranks_of[static_cast<std::size_t>(node_)];
    const auto root =
        static_cast<int>(std::lower_bound(ranks.begin(), ranks.end(), source) - ranks.begin());
    const std::span<std::byte> bytes = place(vector, flight.subgroup);
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
    // With one node nothing travels between nodes and a subgroup goes on at once.
    const std::size_t ahead = settings_.nodes.groups() > 1 ? settings_.in_flight : 1;
    const std::size_t count = settings_.partition->subgroups().size();
    std::size_t next = 0;
    while (next < count || !between_.empty()) {
        while (next < count && between_.size() < ahead) {
            between_.push_back(take_off(vector, next, is_ready));
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
