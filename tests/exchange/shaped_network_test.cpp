// Messages to other nodes take as long as the shaped networks require, and arrive unchanged.
#include "mpi/exchange/gradient_scatter.hpp"
#include "mpi/exchange/parameter_gather.hpp"
#include "shaping/node_links.hpp"
#include "support/test.hpp"

namespace nearstep::exchange {
namespace {

using shard::kTileElems;
using trace::Counter;

constexpr double kRate = 50e6;  // bytes per second out of a node
constexpr std::size_t kShapedTiles = 24;

// Each rank is a node with its own network.
class ShapedNetwork : public testing::Test {
protected:
    ShapedNetwork()
        : world_(mpi::Communicator::world(std::chrono::seconds(60))),
          nodes_(mpi::each_rank_alone(world_.size())),
          map_(std::vector<int>(static_cast<std::size_t>(world_.size()), 1)),
          partition_({.parameters = kShapedTiles * kTileElems,
                      .speeds = std::vector<double>(static_cast<std::size_t>(world_.size()), 1.0),
                      .subgroup_tiles = 2}) {
        links_.emplace(shaping::Rates{.network = kRate},
                       memory::Buffer(shaping::NodeLinks::kTimesBytes), clock_);
        world_.barrier();
        begin_ = clock_.now();
    }

    double seconds() const { return static_cast<double>(clock_.now() - begin_) / 1e9; }
    double seconds_of(Counter counter) const {
        return static_cast<double>(traffic_.snapshot()[counter]) / kRate;
    }

    mpi::Communicator world_;
    mpi::Topology nodes_;
    shard::DeviceMap map_;
    shard::Partition partition_;
    shaping::Clock clock_;
    std::optional<shaping::NodeLinks> links_;
    trace::Traffic traffic_;
    shaping::Time begin_ = 0;
};

TEST_F(ShapedNetwork, HoldsTheParametersBackAndBringsThemAll) {
    ParameterGather gather(
        world_, {.partition = &partition_, .devices = &map_, .nodes = nodes_, .links = &*links_},
        traffic_);
    std::vector<std::uint16_t> vector(kShapedTiles * kTileElems, 0);
    for (const shard::Subgroup& subgroup : partition_.subgroups()) {
        if (map_.rank_of(subgroup.device) == world_.rank()) {
            const auto begin =
                vector.begin() + static_cast<std::ptrdiff_t>(subgroup.tiles.begin * kTileElems);
            const auto elems = static_cast<std::ptrdiff_t>(subgroup.tiles.size() * kTileElems);
            std::iota(begin, begin + elems, std::uint16_t{1});
        }
    }
    gather.gather(std::as_writable_bytes(std::span(vector)), [](std::size_t) { return true; });
    EXPECT_GE(seconds(), seconds_of(Counter::network_parameters));
    for (const shard::Subgroup& subgroup : partition_.subgroups()) {
        std::uint16_t wanted = 1;
        for (std::size_t i = subgroup.tiles.begin * kTileElems; i < subgroup.tiles.end * kTileElems;
             ++i) {
            ASSERT_EQ(vector[i], wanted++) << "element " << i;
        }
    }
}

TEST_F(ShapedNetwork, HoldsTheGradientsBackAndBringsThemAll) {
    const auto codec = codec::make_codec({.name = "dense"});
    const shard::TileRange all{0, kShapedTiles};
    std::vector<int> ranks(static_cast<std::size_t>(world_.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    const shard::Ownership owners({{.ranks = ranks, .devices = map_, .partition = partition_}});
    const Routes routes(owners, nodes_, nodes_, world_.rank());
    const Route round = routes.of(all);
    GradientScatter scatter(world_, routes, {.codec = codec.get(), .links = &*links_}, {&round, 1},
                            traffic_);
    const auto taken = scatter.scatter(
        round, [](std::size_t, std::span<float> values) { std::ranges::fill(values, 1.0F); });
    for (const TilePayloads& one : taken) {
        EXPECT_EQ(one.payloads.size(), static_cast<std::size_t>(world_.size()));
    }
    EXPECT_GE(seconds(), seconds_of(Counter::network_gradients));
    std::size_t owned = 0;
    for (const shard::Subgroup& subgroup : partition_.subgroups_of(world_.rank())) {
        owned += subgroup.tiles.size();
    }
    EXPECT_EQ(taken.size(), owned);
}

}  // namespace
}  // namespace nearstep::exchange
