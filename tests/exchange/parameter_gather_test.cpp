// Tests that the parameters of all owners reach all ranks, some or all tiles at a time.
#include "mpi/exchange/parameter_gather.hpp"

#include "exchange/gather_fixture.hpp"

namespace nearstep::exchange {
namespace {

using shard::kTileElems;
using trace::Counter;
using Vector = std::vector<std::uint16_t>;

std::uint16_t value_of(std::size_t element) {
    return static_cast<std::uint16_t>(element * 2654435761U >> 7U);
}

const IsReady kReady = [](std::size_t) { return true; };

class Gather : public GatherRanks {
protected:
    bool owns(std::size_t tile) const {
        return shard::owner_of(partition_, map_, partition_.subgroup_of_tile(tile)) ==
               world_.rank();
    }

    // Zero but for the chosen tiles.
    template <typename Choose>
    Vector with_tiles(const Choose& is_there) const {
        Vector vector(elems(), 0);
        for (std::size_t i = 0; i < vector.size(); ++i) {
            vector[i] = is_there(i / kTileElems) ? value_of(i) : 0;
        }
        return vector;
    }
    // Returns the parameters that this rank owns, as devices write them.
    Vector own() const {
        return with_tiles([this](std::size_t tile) { return owns(tile); });
    }
    Vector whole() const {
        return with_tiles([](std::size_t) { return true; });
    }
};

TEST_P(Gather, BringsSomeTilesWithoutTheOthers) {
    ParameterGather gather(world_, settings(), traffic_);
    Vector vector = own();
    const std::vector<shard::TileRange> wanted = {{1, 2}, {5, 12}, {36, 37}};
    gather.bring(std::as_writable_bytes(std::span(vector)), wanted, kReady);
    gather.bring(std::as_writable_bytes(std::span(vector)), {}, kReady);
    EXPECT_EQ(vector, with_tiles([this](std::size_t tile) {
                  return owns(tile) || tile == 1 || (tile >= 5 && tile < 12) || tile == 36;
              }));
    EXPECT_EQ(sent()[Counter::network_parameters],
              9 * kTileElems * 2 * (static_cast<std::size_t>(nodes_.groups()) - 1));
}

// Here each rank has its own vector, to show what each would write to a shared one: of pairs of a
// node, and of a node.
TEST_P(Gather, WritesEachSharedVectorOnce) {
    for (const int together : {std::min(2, nodes_.most_beside()), nodes_.most_beside()}) {
        ParameterGatherSettings shared = settings();
        shared.vectors = mpi::groups_of(nodes_, together, world_.size());
        trace::Traffic traffic;
        ParameterGather gather(world_, shared, traffic);
        Vector vector = own();
        gather.gather(std::as_writable_bytes(std::span(vector)), kReady);
        EXPECT_TRUE(std::ranges::equal(written_by(shared.vectors, vector), whole()));
        const auto nodes = static_cast<std::size_t>(nodes_.groups());
        const auto vectors = static_cast<std::size_t>(shared.vectors.groups());
        EXPECT_EQ(sent(traffic)[Counter::network_parameters], vector.size() * 2 * (nodes - 1));
        EXPECT_EQ(sent(traffic)[Counter::node_parameters], vector.size() * 2 * (vectors - nodes));
    }
}

TEST_P(Gather, BringsEveryOwnersParametersToAllRanks) {
    ParameterGather gather(world_, settings(), traffic_);
    Vector vector = own();
    int polls = 0;
    gather.gather(std::as_writable_bytes(std::span(vector)), [&](std::size_t subgroup) {
        EXPECT_EQ(shard::owner_of(partition_, map_, subgroup), world_.rank());
        return ++polls % 3 == 0;  // not ready at first
    });
    EXPECT_EQ(vector, whole());
    const std::size_t vector_bytes = vector.size() * 2;
    const auto count = static_cast<std::size_t>(nodes_.groups());
    EXPECT_EQ(sent()[Counter::network_parameters], vector_bytes * (count - 1));
    EXPECT_EQ(sent()[Counter::node_parameters],
              vector_bytes * (static_cast<std::size_t>(world_.size()) - count));
}

// Ranks reach a part at different times and in different ways.
TEST_P(Gather, BringsWhatIsAskedForPartByPart) {
    ParameterGather gather(world_, settings(), traffic_);
    Vector vector = own();
    const Vector wanted = whole();
    for (int step = 0; step < 2; ++step) {
        int looks = 0;
        gather.begin(std::as_writable_bytes(std::span(vector)),
                     [&](std::size_t) { return ++looks % 3 == 0; });
        for (const std::size_t end : {0, 1, 8, 7, 30}) {
            for (int poll = 0; poll < world_.rank() * 5; ++poll) {
                gather.poll();
            }
            gather.advance(end);
            ASSERT_TRUE(std::equal(vector.begin(), vector.begin() + elems_of(end), wanted.begin()))
                << "tiles to " << end;
        }
        gather.finish();
        EXPECT_EQ(vector, wanted);
        world_.barrier();
        vector = own();
    }
    const auto count = static_cast<std::size_t>(nodes_.groups());
    EXPECT_EQ(sent()[Counter::network_parameters], 2 * vector.size() * 2 * (count - 1));
}

INSTANTIATE_TEST_SUITE_P(Nodes, Gather, testing::Values(0, 1, 2));

}  // namespace
}  // namespace nearstep::exchange
