#include "mpi/exchange/parameter_gather.hpp"

#include "exchange/gather_fixture.hpp"

namespace nearstep::exchange {
namespace {

using shard::kTileElems;
using trace::Counter;

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

    // Writes what this rank owns, as devices do.
    void fill_own(std::span<std::uint16_t> vector) const {
        for (std::size_t i = 0; i < vector.size(); ++i) {
            if (owns(i / kTileElems)) {
                vector[i] = value_of(i);
            }
        }
    }
};

TEST_P(Gather, BringsSomeTilesWithoutTheOthers) {
    ParameterGather gather(world_, settings(), traffic_);
    std::vector<std::uint16_t> vector(elems(), 0);
    fill_own(vector);
    const std::vector<shard::TileRange> wanted = {{1, 2}, {5, 12}, {36, 37}};
    gather.bring(std::as_writable_bytes(std::span(vector)), wanted, kReady);
    gather.bring(std::as_writable_bytes(std::span(vector)), {}, kReady);
    for (std::size_t tile = 0; tile < partition_.tiles(); ++tile) {
        const bool is_there = owns(tile) || tile == 1 || (tile >= 5 && tile < 12) || tile == 36;
        for (std::size_t i = tile * kTileElems; i < (tile + 1) * kTileElems; ++i) {
            ASSERT_EQ(vector[i], is_there ? value_of(i) : 0) << "element " << i;
        }
    }
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
        std::vector<std::uint16_t> vector(elems(), 0);
        fill_own(vector);
        gather.gather(std::as_writable_bytes(std::span(vector)), kReady);
        const std::vector<std::uint64_t> written = written_by(shared.vectors, vector);
        for (std::size_t i = 0; i < vector.size(); ++i) {
            ASSERT_EQ(written[i], value_of(i)) << "element " << i;
        }
        const auto nodes = static_cast<std::size_t>(nodes_.groups());
        const auto vectors = static_cast<std::size_t>(shared.vectors.groups());
        EXPECT_EQ(sent(traffic)[Counter::network_parameters], vector.size() * 2 * (nodes - 1));
        EXPECT_EQ(sent(traffic)[Counter::node_parameters], vector.size() * 2 * (vectors - nodes));
    }
}

TEST_P(Gather, BringsEveryOwnersParametersToAllRanks) {
    ParameterGather gather(world_, settings(), traffic_);
    std::vector<std::uint16_t> vector(elems(), 0);
    fill_own(vector);
    int polls = 0;
    gather.gather(std::as_writable_bytes(std::span(vector)), [&](std::size_t subgroup) {
        EXPECT_EQ(shard::owner_of(partition_, map_, subgroup), world_.rank());
        return ++polls % 3 == 0;  // not ready at first
    });
    for (std::size_t i = 0; i < vector.size(); ++i) {
        ASSERT_EQ(vector[i], value_of(i)) << "element " << i;
    }

    const std::size_t vector_bytes = vector.size() * 2;
    const auto count = static_cast<std::size_t>(nodes_.groups());
    EXPECT_EQ(sent()[Counter::network_parameters], vector_bytes * (count - 1));
    EXPECT_EQ(sent()[Counter::node_parameters],
              vector_bytes * (static_cast<std::size_t>(world_.size()) - count));
}

// Ranks reach a part at different times and in different ways.
TEST_P(Gather, BringsWhatIsAskedForPartByPart) {
    ParameterGather gather(world_, settings(), traffic_);
    std::vector<std::uint16_t> vector(elems(), 0);
    fill_own(vector);
    for (int step = 0; step < 2; ++step) {
        int looks = 0;
        gather.begin(std::as_writable_bytes(std::span(vector)),
                     [&](std::size_t) { return ++looks % 3 == 0; });
        for (const std::size_t end : {0, 1, 8, 7, 30}) {
            for (int poll = 0; poll < world_.rank() * 5; ++poll) {
                gather.poll();
            }
            gather.advance(end);
            for (std::size_t i = 0; i < end * kTileElems; ++i) {
                ASSERT_EQ(vector[i], value_of(i)) << "element " << i << " of tiles to " << end;
            }
        }
        gather.finish();
        for (std::size_t i = 0; i < vector.size(); ++i) {
            ASSERT_EQ(vector[i], value_of(i)) << "element " << i;
        }
        std::fill(vector.begin(), vector.end(), std::uint16_t{0});
        world_.barrier();
        fill_own(vector);
    }
    const auto count = static_cast<std::size_t>(nodes_.groups());
    EXPECT_EQ(sent()[Counter::network_parameters], 2 * vector.size() * 2 * (count - 1));
}

INSTANTIATE_TEST_SUITE_P(Nodes, Gather, testing::Values(0, 1, 2));

}  // namespace
}  // namespace nearstep::exchange
