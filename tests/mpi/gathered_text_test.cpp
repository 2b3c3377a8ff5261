// Tests that texts of all ranks come together in their order.
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

TEST(GatheredText, SendsEqualTextsOnce) {
    SharedTexts texts;
    for (int rank = 0; rank < 1000; ++rank) {
        texts.add(rank == 500 ? "other" : std::string(3000, 'a'));
    }
    EXPECT_LT(texts.packed_first(1000).size(), 4000U);
    SharedTexts received;
    received.add_packed(texts.packed_first(501));
    ASSERT_EQ(received.size(), 501U);
    EXPECT_EQ(received.all()[499], std::string(3000, 'a'));
    EXPECT_EQ(received.all()[500], "other");
}

TEST(GatheredText, ComesFromTheRanksAtTheDistances) {
    const Communicator world = Communicator::world(std::chrono::seconds(60));
    const std::vector<int> distances = {1, 2};
    const auto texts = texts_at(world, distances, std::to_string(world.rank()));
    ASSERT_EQ(texts.size(), distances.size());
    for (std::size_t i = 0; i < texts.size(); ++i) {
        EXPECT_EQ(texts[i], std::to_string((world.rank() + distances[i]) % world.size()));
    }
}

}  // namespace
}  // namespace nearstep::mpi
