// Rounds whose messages MPI cannot count.
#include "mpi/exchange/gradient_scatter.hpp"
#include "support/test.hpp"

namespace nearstep::exchange {
namespace {

using shard::kTileElems;

// No memory of 2 GiB is allocated.
TEST(ScatterOfLargeRounds, IsRefusedWhereAMessageWouldBeTooLarge) {
    const auto world = mpi::Communicator::world(std::chrono::seconds(60));
    if (world.size() == 1) {
        GTEST_SKIP() << "one rank sends no message";
    }
    constexpr std::size_t kLargeTiles = std::size_t{1} << 14U;  // 2 GiB of bf16
    std::vector<int> all(static_cast<std::size_t>(world.size()));
    std::iota(all.begin(), all.end(), 0);
    const shard::Ownership owners(
        {{.ranks = all,
          .devices = shard::DeviceMap(std::vector<int>(all.size(), 1)),
          .partition = shard::Partition({.parameters = kLargeTiles * kTileElems,
                                         .speeds = std::vector(all.size(), 1.0),
                                         .subgroup_tiles = kLargeTiles,
                                         .least_stripes = 1})}});
    const auto codec = codec::make_codec({.name = "dense"});
    const mpi::Topology nodes = mpi::group_by(std::vector<int>(all.size(), 0));
    const Routes routes(owners, nodes, nodes, world.rank());
    const std::vector<Route> rounds = {routes.of({0, kLargeTiles})};
    trace::Traffic traffic;
    EXPECT_THAT(message_of([&] {
                    GradientScatter(world, routes, {.codec = codec.get()}, rounds, traffic);
                }),
                testing::HasSubstr("lower csd.subgroup_tiles"));
}

}  // namespace
}  // namespace nearstep::exchange
