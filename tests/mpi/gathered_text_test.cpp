#include "mpi/gathered_text.hpp"

#include "support/test.hpp"

namespace nearstep::mpi {
namespace {

TEST(GatheredText, IsInRankOrderWithAnyLength) {
    const Communicator world = Communicator::world(std::chrono::seconds(60));
    const auto text_of = [](int rank) {
        return std::string(static_cast<std::size_t>(rank) * 3000, static_cast<char>('a' + rank));
    };
    for (int round = 0; round < 3; ++round) {
        const std::vector<std::string> all = gather_text(world, text_of(world.rank() + round));
        ASSERT_EQ(std::ssize(all), world.size());
        for (int rank = 0; rank < world.size(); ++rank) {
            EXPECT_EQ(all[static_cast<std::size_t>(rank)], text_of(rank + round));
        }
    }
}

}  // namespace
}  // namespace nearstep::mpi
