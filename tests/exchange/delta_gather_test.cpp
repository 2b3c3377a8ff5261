// The parameter gather by deltas.
#include "exchange/gather_fixture.hpp"

namespace nearstep::exchange {
namespace {

using shard::kTileElems;
using trace::Counter;
using Vector = std::vector<std::uint16_t>;

// Messages are made as devices make them.
class DeltaGathers : public GatherRanks {
protected:
    ParameterGatherSettings of_deltas() const {
        ParameterGatherSettings wanted = settings();
        wanted.has_deltas = true;
        return wanted;
    }

    bool is_mine(std::size_t subgroup) const {
        return map_.rank_of(partition_.subgroups()[subgroup].device) == world_.rank();
    }

    // The parameters after one step: each tile of `before` has its own share of changes, up to all.
    Vector step(const Vector& before, std::uint64_t seed) const {
        Vector after = before;
        for (std::size_t i = 0; i < after.size(); ++i) {
            const std::uint64_t bits = random_bits(seed, 0, i);
            const std::size_t tile = i / kTileElems;
            if (bits % 37 < (tile + seed) % 38) {
                after[i] = tile % 3 == 0 ? static_cast<std::uint16_t>(after[i] + 1)
                                         : static_cast<std::uint16_t>(bits >> 32U);
            }
        }
        return after;
    }

    // Gathers `after` into `copy`; each message is ready at the third poll.
    void gather(Vector& copy, const Vector& before, const Vector& after) {
        gather_.begin_deltas(std::as_writable_bytes(std::span(copy)), messages_of(before, after));
        gather_.finish();
    }

    // The vectors must outlive the result.
    FindMessage messages_of(const Vector& before, const Vector& after) {
        return [this, &before, &after,
                looks = 0](std::size_t subgroup) mutable -> std::span<const std::byte> {
            EXPECT_TRUE(is_mine(subgroup));
            if (++looks % 3 != 0) {
                return {};
            }
            const shard::TileRange tiles = partition_.subgroups()[subgroup].tiles;
            auto& memory = messages_[subgroup];
            memory.resize(codec::message_room_bytes(tiles.size()) / 8);
            const auto room = std::as_writable_bytes(std::span(memory));
            codec::DeltaWriter writer(room, tiles);
            for (std::size_t tile = tiles.begin; tile < tiles.end; ++tile) {
                writer.add(&before[tile * kTileElems], &after[tile * kTileElems]);
            }
            message_bytes_ += writer.finish();
            return room;
        };
    }

    std::map<std::size_t, std::vector<std::uint64_t>> messages_;  // outlives gather_
    ParameterGather gather_{world_, of_deltas(), traffic_};
    std::uint64_t message_bytes_ = 0;  // of this rank's subgroups
};

TEST_P(DeltaGathers, GiveEveryRankTheOwnersParametersStepByStep) {
    Vector before(elems());
    for (std::size_t i = 0; i < before.size(); ++i) {
        before[i] = static_cast<std::uint16_t>(random_bits(1, 0, i));
    }
    Vector copy = before;
    for (std::uint64_t seed = 2; seed < 8; ++seed) {
        const Vector after = step(before, seed);
        gather(copy, before, after);
        ASSERT_EQ(copy, after) << "step " << seed;
        before = after;
    }
}

// Ranks reach a part at different times and in different ways.
TEST_P(DeltaGathers, BringWhatIsAskedForPartByPart) {
    Vector before(elems(), 7);
    Vector copy = before;
    for (std::uint64_t seed = 2; seed < 4; ++seed) {
        const Vector after = step(before, seed);
        gather_.begin_deltas(std::as_writable_bytes(std::span(copy)), messages_of(before, after));
        for (const std::size_t end : {0, 1, 8, 7, 30}) {
            for (int poll = 0; poll < world_.rank() * 5; ++poll) {
                gather_.poll();
            }
            gather_.advance(end);
            ASSERT_TRUE(std::equal(after.begin(), after.begin() + elems_of(end), copy.begin()))
                << "tiles to " << end;
        }
        gather_.finish();
        ASSERT_EQ(copy, after);
        before = after;
    }
}

TEST_P(DeltaGathers, SendEachMessageOnceToEachNodeAndCountItsBytes) {
    const Vector before(elems(), 7);
    Vector copy = before;
    gather(copy, before, step(before, 3));

    std::vector<std::uint64_t> bytes = {message_bytes_};
    world_.sum(std::span(bytes));
    const auto nodes = static_cast<std::uint64_t>(nodes_.groups());
    EXPECT_EQ(sent()[Counter::network_parameters], bytes[0] * (nodes - 1));
    EXPECT_EQ(sent()[Counter::node_parameters],
              bytes[0] * (static_cast<std::uint64_t>(world_.size()) - nodes));
    EXPECT_LT(bytes[0], 2 * elems());

    codec::DeltaTally tally = gather_.tally();
    world_.sum(std::span(tally.tiles));
    world_.sum(std::span(tally.bytes));
    const auto sum = [](const auto& of_form) {
        return std::accumulate(of_form.begin(), of_form.end(), std::uint64_t{0});
    };
    EXPECT_EQ(sum(tally.tiles), partition_.tiles());
    EXPECT_LE(sum(tally.bytes), bytes[0]);
}

// Here each rank has its own vector, to show what each would write to a shared one.
TEST_P(DeltaGathers, WriteASharedVectorOncePerNode) {
    ParameterGatherSettings by_node = of_deltas();
    by_node.vectors = nodes_;
    ParameterGather shared(world_, by_node, traffic_);
    const Vector before(elems(), 7);
    const Vector after = step(before, 3);
    Vector copy = before;
    shared.begin_deltas(std::as_writable_bytes(std::span(copy)), messages_of(before, after));
    shared.finish();
    const std::vector<std::uint64_t> written = written_by(nodes_, copy);
    const auto others = static_cast<std::uint64_t>(nodes_.ranks_beside(world_.rank()).size()) - 1;
    for (std::size_t i = 0; i < elems(); ++i) {
        ASSERT_EQ(written[i], after[i] + others * before[i]) << "element " << i;
    }
    EXPECT_EQ(sent()[Counter::node_parameters], 0U);
}

TEST_P(DeltaGathers, FindACopyThatIsNotTheOwners) {
    const Vector before(elems(), 7);
    const Vector after = step(before, 3);
    Vector copy = before;
    // Choose a parameter that the message does not change: in tile 0 few change.
    auto at = static_cast<std::size_t>(world_.rank()) * 1000;
    while (before[at] != after[at]) {
        ++at;
    }
    copy[at] ^= 4U;
    EXPECT_THROW(gather(copy, before, after), Error);
}

INSTANTIATE_TEST_SUITE_P(Nodes, DeltaGathers, testing::Values(0, 1, 2));

}  // namespace
}  // namespace nearstep::exchange
