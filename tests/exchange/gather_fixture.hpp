// Ranks whose devices own parts of a parameter vector, for tests of gathers.
#pragma once

#include "mpi/exchange/parameter_gather.hpp"
#include "support/test.hpp"

namespace nearstep::exchange {

// Ranks with two devices each, the last with one. Parameter: ranks per node; 0: all.
class GatherRanks : public testing::TestWithParam<int> {
protected:
    GatherRanks()
        : world_(mpi::Communicator::world(std::chrono::seconds(60))),
          map_(devices_per_rank(world_.size())),
          partition_({.parameters = 37 * shard::kTileElems - 100,
                      .speeds = std::vector<double>(static_cast<std::size_t>(map_.devices()), 1.0),
                      .subgroup_tiles = 2}),
          nodes_(nodes_of(world_.size())) {}

    static std::vector<int> devices_per_rank(int ranks) {
        std::vector<int> devices(static_cast<std::size_t>(ranks), 2);
        devices.back() = 1;
        return devices;
    }

    static mpi::Topology nodes_of(int ranks) {
        std::vector<int> node(static_cast<std::size_t>(ranks));
        for (int rank = 0; rank < ranks; ++rank) {
            node[static_cast<std::size_t>(rank)] = GetParam() == 0 ? 0 : rank / GetParam();
        }
        return mpi::group_by(node);
    }

    ParameterGatherSettings settings() const {
        return {.partition = &partition_, .devices = &map_, .nodes = nodes_, .in_flight = 3};
    }

    std::size_t elems() const { return partition_.tiles() * shard::kTileElems; }
    static std::ptrdiff_t elems_of(std::size_t tiles) {
        return static_cast<std::ptrdiff_t>(tiles * shard::kTileElems);
    }

    // Returns the traffic of all ranks.
    trace::TrafficSnapshot sent() const { return sent(traffic_); }
    trace::TrafficSnapshot sent(const trace::Traffic& traffic) const {
        auto sent = traffic.snapshot();
        world_.sum(std::span(sent.bytes));
        return sent;
    }

    // The sum of each element over the ranks of these groups, who would share one vector.
    std::vector<std::uint64_t> written_by(const mpi::Topology& sharers,
                                          const std::vector<std::uint16_t>& vector) const {
        std::vector<std::uint64_t> written(vector.begin(), vector.end());
        world_.split(sharers.group_of[static_cast<std::size_t>(world_.rank())])
            .sum(std::span(written));
        return written;
    }

    mpi::Communicator world_;
    shard::DeviceMap map_;
    shard::Partition partition_;
    mpi::Topology nodes_;
    trace::Traffic traffic_;
};

}  // namespace nearstep::exchange
