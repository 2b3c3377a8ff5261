#include "mpi/exchange/parameter_gather.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

namespace nearstep::exchange {
namespace {

using shard::kTileElems;
using trace::Counter;

std::uint16_t value_of(std::size_t element) {
    return static_cast<std::uint16_t>(element * 2654435761U >> 7U);
}

class Gather : public testing::TestWithParam<int> {};  // ranks per node; 0: all

TEST_P(Gather, BringsEveryOwnersParametersToAllRanks) {
    const auto world = mpi::Communicator::world(std::chrono::seconds(60));
    std::vector<int> devices_per_rank(static_cast<std::size_t>(world.size()), 2);
    devices_per_rank.back() = 1;
    std::vector<int> node(static_cast<std::size_t>(world.size()));
    for (int rank = 0; rank < world.size(); ++rank) {
        node[static_cast<std::size_t>(rank)] = GetParam() == 0 ? 0 : rank / GetParam();
    }
    const shard::DeviceMap map(devices_per_rank);
    const shard::Partition partition(
        {.parameters = 37 * kTileElems - 100,
         .speeds = std::vector<double>(static_cast<std::size_t>(map.devices()), 1.0),
         .subgroup_tiles = 2});
    const mpi::Topology nodes = mpi::group_by(node);
    trace::Traffic traffic;
    ParameterGather gather(
        world, {.partition = &partition, .devices = &map, .nodes = nodes, .in_flight = 3}, traffic);

    std::vector<std::uint16_t> vector(partition.tiles() * kTileElems, 0);
    for (const shard::Subgroup& subgroup : partition.subgroups()) {
        if (map.rank_of(subgroup.device) == world.rank()) {
            for (std::size_t i = subgroup.tiles.begin * kTileElems;
                 i < subgroup.tiles.end * kTileElems; ++i) {
                vector[i] = value_of(i);
            }
        }
    }
    int polls = 0;
    gather.gather(std::as_writable_bytes(std::span(vector)), [&](std::size_t subgroup) {
        EXPECT_EQ(map.rank_of(partition.subgroups()[subgroup].device), world.rank());
        return ++polls % 3 == 0;  // not ready at first
    });
    for (std::size_t i = 0; i < vector.size(); ++i) {
        ASSERT_EQ(vector[i], value_of(i)) << "element " << i;
    }

    auto sent = traffic.snapshot();
    world.sum(std::span(sent.bytes));
    const std::size_t vector_bytes = vector.size() * 2;
    const auto count = static_cast<std::size_t>(nodes.groups());
    EXPECT_EQ(sent[Counter::network_parameters], vector_bytes * (count - 1));
    EXPECT_EQ(sent[Counter::node_parameters],
              vector_bytes * (static_cast<std::size_t>(world.size()) - count));
}

INSTANTIATE_TEST_SUITE_P(Nodes, Gather, testing::Values(0, 1, 2));

}  // namespace
}  // namespace nearstep::exchange
