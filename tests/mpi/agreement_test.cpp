// Tests that ranks with different settings are told what differs.
#include "mpi/agreement.hpp"

#include "base/error.hpp"
#include "support/test.hpp"

namespace nearstep::mpi {
namespace {

Communicator all_ranks() { return Communicator::world(std::chrono::seconds(60)); }

TEST(Agreement, AcceptsEqualSettings) {
    const Communicator world = all_ranks();
    EXPECT_NO_THROW(require_equal(world, {}));
    EXPECT_NO_THROW(require_equal(world, {{"seed", "1"}, {"codec", "\"q4\""}}));
}

TEST(Agreement, NamesWhatDiffersAndTheRanksOnAllRanks) {
    const Communicator world = all_ranks();
    const bool is_last = world.rank() + 1 == world.size();
    NamedValues mine = {{"seed", is_last ? "2" : "1"}, {"codec", "dense"}};
    if (is_last) {
        mine.push_back({"extra", "3"});
    }
    if (world.size() == 1) {
        EXPECT_NO_THROW(require_equal(world, mine));
        return;
    }
    const std::string said = message_of<ConfigError>([&] { require_equal(world, mine); });
    const std::string others = world.size() == 2 ? "rank 0" : text("ranks 0-", world.size() - 2);
    const std::string last = text("rank ", world.size() - 1);
    EXPECT_THAT(said, HasSubstr(text("seed is 1 on ", others, " and 2 on ", last)));
    EXPECT_THAT(said, HasSubstr(text("extra is not there on ", others, " and 3 on ", last)));
    EXPECT_THAT(said, testing::Not(HasSubstr("codec")));
}

TEST(Agreement, NamesFewOfAThousandRanks) {
    std::vector<NamedValues> of_ranks;
    for (int rank = 0; rank < 1000; ++rank) {
        of_ranks.push_back({{"seed", text(rank)}, {"codec", rank % 2 == 0 ? "q4" : "dense"}});
    }
    EXPECT_THAT(difference("seed", of_ranks), HasSubstr("7 on rank 7 and 992 more"));
    EXPECT_THAT(difference("codec", of_ranks),
                HasSubstr("q4 on ranks 0,2,4,6,8,10,12,14 and 492 more and dense on ranks 1,"));
}

// A sum of digests could hide a difference; counts of their bits cannot.
TEST(Agreement, CountsOfBitsTellWhetherDigestsAreEqual) {
    const Communicator world = all_ranks();
    const auto are_alike = [&](std::uint64_t digest) {
        std::array<std::uint64_t, kDigestBits> counts = counts_of(digest);
        world.sum(std::span<std::uint64_t>(counts));
        return are_equal(counts, world.size());
    };
    EXPECT_TRUE(are_alike(0));
    EXPECT_TRUE(are_alike(0x8000000000000005U));
    EXPECT_EQ(are_alike(world.rank() == 0 ? 4 : 5), world.size() == 1);
    EXPECT_EQ(are_alike(std::uint64_t{1} << (world.rank() % 2 == 0 ? 63U : 0U)), world.size() == 1);
}

}  // namespace
}  // namespace nearstep::mpi
