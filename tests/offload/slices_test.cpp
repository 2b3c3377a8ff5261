#include "offload/slices.hpp"

#include "base/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nearstep::offload {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Slices, HoldEachTileOnceByMemberAndAscending) {
    const Slices slices({10, 17}, 3, [](std::size_t tile) { return tile % 2 == 0 ? 2 : 0; });
    EXPECT_EQ(slices.tiles(), 7U);
    EXPECT_THAT(slices.order(), ElementsAre(1, 3, 5, 0, 2, 4, 6));
    EXPECT_THAT(slices.of(0), ElementsAre(1, 3, 5));
    EXPECT_THAT(slices.of(1), IsEmpty());
    EXPECT_THAT(slices.of(2), ElementsAre(0, 2, 4, 6));
    EXPECT_EQ(slices.first(2), 3U);
}

TEST(Slices, MayBeOfNoTileAndOfOneMember) {
    EXPECT_EQ(Slices({4, 4}, 2, [](std::size_t) { return 0; }).count(1), 0U);
    EXPECT_THAT(Slices({4, 6}, 1, [](std::size_t) { return 0; }).of(0), ElementsAre(0, 1));
}

TEST(Slices, AreOfMembersOfTheGroup) {
    EXPECT_THROW(Slices({0, 1}, 2, [](std::size_t) { return 2; }), ContractError);
    EXPECT_THROW(Slices({0, 1}, 2, [](std::size_t) { return -1; }), ContractError);
}

}  // namespace
}  // namespace nearstep::offload
