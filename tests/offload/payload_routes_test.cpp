#include "offload/payload_routes.hpp"

#include "base/error.hpp"
#include "base/random.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <utility>

namespace nearstep::offload {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Ranks 0 and 1 form a group, 2 and 3 another. Ranks 0 and 2 take tiles, two at a time in turn.
// Rank 1 or 3 makes the other group's payload.
MakersAndTakers pairs() {
    const auto taker = [](std::size_t tile) { return tile / 2 % 2 == 0 ? 0 : 2; };
    return {.ranks = 4,
            .groups = 2,
            .maker =
                [taker](int group, std::size_t tile) {
                    return taker(tile) / 2 == group ? taker(tile) : 2 * group + 1;
                },
            .taker = taker};
}

TEST(PayloadRoutes, SendByTakerThenByTile) {
    // Of tiles 3 to 8, rank 0 takes 4, 5, 8 and keeps its own payloads; rank 1 makes 3, 6, 7 for 2.
    const PayloadRoutes taker({3, 9}, 0, 0, pairs());
    EXPECT_THAT(taker.order(), ElementsAre(0, 1, 2));
    EXPECT_EQ(taker.kept(), 3U);
    EXPECT_EQ(taker.count_of(3), 3U);
    EXPECT_EQ(taker.came(), 3U);
    EXPECT_EQ(taker.place_of(4, 1), 0U);
    EXPECT_EQ(taker.place_of(8, 1), 2U);
    EXPECT_EQ(taker.place_of(4, 0), 3U);
    EXPECT_EQ(taker.place_of(8, 0), 5U);
    EXPECT_THROW(taker.place_of(6, 0), ContractError);

    const PayloadRoutes maker({3, 9}, 1, 0, pairs());
    EXPECT_THAT(maker.order(), ElementsAre(0, 1, 2));
    EXPECT_EQ(maker.count_for(2), 3U);
    EXPECT_EQ(maker.came() + maker.kept(), 0U);
}

TEST(PayloadRoutes, PutWhatIsForOneTakerSideBySide) {
    const MakersAndTakers ranks_of{
        .ranks = 3,
        .groups = 3,
        .maker = [](int group, std::size_t) { return group; },
        .taker = [](std::size_t tile) { return static_cast<int>(tile % 3); }};
    const PayloadRoutes routes({10, 16}, 1, 1, ranks_of);  // taken by 1, 2, 0, 1, 2, 0
    EXPECT_THAT(routes.order(), ElementsAre(2, 5, 0, 3, 1, 4));
    EXPECT_EQ(routes.first_for(1), 2U);
    EXPECT_EQ(routes.kept(), 2U);
    EXPECT_EQ(routes.first_of(2), 2U);
    EXPECT_EQ(routes.place_of(13, 2), 3U);
}

TEST(PayloadRoutes, MayBeOfNoTile) {
    const PayloadRoutes routes({4, 4}, 2, 1, pairs());
    EXPECT_THAT(routes.order(), IsEmpty());
    EXPECT_EQ(routes.came() + routes.kept(), 0U);
}

// With random makers and takers: what one rank sends is what the other expects, in the same order,
// and every payload reaches its taker once.
TEST(PayloadRoutes, AreTheSameSeenFromBothSides) {
    constexpr shard::TileRange kTiles{5, 60};
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        constexpr int kGroups = 3;
        constexpr int kRanks = 7;  // groups of 3, 3 and 1
        const auto draw = [&](std::uint64_t what, std::size_t tile, int below) {
            return static_cast<int>(random_uniform(seed, what, tile) * below);
        };
        const MakersAndTakers ranks_of{
            .ranks = kRanks,
            .groups = kGroups,
            .maker =
                [&](int group, std::size_t tile) {
                    return 3 * group +
                           draw(static_cast<std::uint64_t>(group), tile, group < 2 ? 3 : 1);
                },
            .taker = [&](std::size_t tile) { return draw(9, tile, kRanks); }};
        std::vector<PayloadRoutes> ranks;
        for (int rank = 0; rank < kRanks; ++rank) {
            ranks.emplace_back(kTiles, rank, rank / 3, ranks_of);
        }
        // The (tile, group) at each index of what a rank takes.
        std::vector<std::map<std::size_t, std::pair<std::size_t, int>>> found(kRanks);
        for (std::size_t tile = kTiles.begin; tile < kTiles.end; ++tile) {
            const int taker = ranks_of.taker(tile);
            for (int group = 0; group < kGroups; ++group) {
                const auto& routes = ranks[static_cast<std::size_t>(taker)];
                const bool is_new =
                    found[static_cast<std::size_t>(taker)]
                        .emplace(routes.place_of(tile, group), std::pair(tile, group))
                        .second;
                EXPECT_TRUE(is_new);
            }
        }
        for (int from = 0; from < kRanks; ++from) {
            const PayloadRoutes& maker = ranks[static_cast<std::size_t>(from)];
            std::vector<std::size_t> made;
            for (std::size_t tile = kTiles.begin; tile < kTiles.end; ++tile) {
                if (ranks_of.maker(from / 3, tile) == from) {
                    made.push_back(tile);
                }
            }
            ASSERT_EQ(maker.order().size(), made.size());
            for (int to = 0; to < kRanks; ++to) {
                const PayloadRoutes& taker = ranks[static_cast<std::size_t>(to)];
                const std::size_t first = from == to ? taker.came() : taker.first_of(from);
                ASSERT_EQ(maker.count_for(to), from == to ? taker.kept() : taker.count_of(from));
                for (std::size_t i = 0; i < maker.count_for(to); ++i) {
                    const std::size_t tile = made[maker.order()[maker.first_for(to) + i]];
                    EXPECT_EQ(found[static_cast<std::size_t>(to)].at(first + i),
                              std::pair(tile, from / 3));
                }
            }
        }
    }
}

TEST(PayloadRoutes, LeadToARank) {
    MakersAndTakers ranks_of = pairs();
    ranks_of.taker = [](std::size_t) { return 4; };
    EXPECT_THROW(PayloadRoutes({0, 1}, 0, 0, ranks_of), ContractError);
}

}  // namespace
}  // namespace nearstep::offload
