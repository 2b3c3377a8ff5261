// Which versions of a subgroup have places, where subgroups share spare ones.
#include "csd/state_places.hpp"

#include "support/test.hpp"

namespace nearstep::csd {
namespace {

TEST(StatePlacesTest, FreesAVersionWhenTheNextOneIsStoredAndSettled) {
    StatePlaces places(2, 4, 3, StatePlaces::Frees::when_stored);
    EXPECT_EQ(places.take(0, 0), 0U);
    EXPECT_EQ(places.take(1, 0), 1U);
    EXPECT_EQ(places.take(0, 1), 2U);
    places.finish(0, 1);  // generation 0 is not given up yet
    EXPECT_EQ(places.find(0, 0), 0U);
    EXPECT_THAT(places.accept(1), testing::IsEmpty());
    EXPECT_EQ(places.find(0, 0), std::nullopt);
    EXPECT_EQ(places.find(1, 0), 1U);
    EXPECT_EQ(places.take(1, 1), 0U);
    places.finish(1, 1);
    EXPECT_EQ(places.find(1, 0), std::nullopt);
}

// An update may have begun when its generation is accepted.
TEST(StatePlacesTest, KeepsAVersionUntilTheNextOneIsStored) {
    StatePlaces places(1, 2, 2, StatePlaces::Frees::when_stored);
    places.take(0, 0);
    places.finish(0, 0);
    places.take(0, 1);
    EXPECT_THAT(places.accept(1), testing::IsEmpty());
    EXPECT_EQ(places.find(0, 0), 0U);
    places.finish(0, 1);
    EXPECT_EQ(places.find(0, 0), std::nullopt);
}

TEST(StatePlacesTest, MayKeepAVersionUntilTheNextOneIsSettled) {
    StatePlaces places(1, 2, 2, StatePlaces::Frees::when_accepted);
    places.take(0, 0);
    places.finish(0, 0);
    places.accept(3);
    places.take(0, 3);
    places.finish(0, 3);
    EXPECT_THAT(places.versions(0, 4), testing::ElementsAre(3, 0));
    EXPECT_THAT(places.versions(0, 2), testing::ElementsAre(0));
    EXPECT_THAT(places.accept(4), testing::IsEmpty());
    EXPECT_THAT(places.versions(0, 4), testing::ElementsAre(3));
}

TEST(StatePlacesTest, GivesUpNewerVersions) {
    StatePlaces places(2, 4, 3, StatePlaces::Frees::when_stored);
    places.take(0, 0);
    places.take(1, 0);
    EXPECT_EQ(places.take(1, 1), 2U);
    EXPECT_THAT(places.accept(0), testing::ElementsAre(2U));
    EXPECT_EQ(places.find(1, 1), std::nullopt);
    EXPECT_EQ(places.find(1, 0), 1U);
}

TEST(StatePlacesTest, ReplaceAVersionInItsPlace) {
    StatePlaces places(2, 3, 3, StatePlaces::Frees::when_stored);
    EXPECT_EQ(places.replace(0, 0), 0U);
    EXPECT_EQ(places.replace(1, 0), 1U);
    EXPECT_EQ(places.replace(1, 4), 1U);
    EXPECT_EQ(places.replace(1, 4), 1U);
    EXPECT_EQ(places.find(1, 0), std::nullopt);
    EXPECT_EQ(places.take(0, 4), 2U);
}

TEST(StatePlacesTest, LendsPlacesAndTakesThemBack) {
    StatePlaces places(2, 4, 3, StatePlaces::Frees::when_stored);
    places.take(0, 0);
    places.take(1, 0);
    EXPECT_EQ(places.take_any(0, 1), 2U);
    EXPECT_EQ(places.take_any(1, 1), 3U);
    places.finish(0, 1);
    places.finish(1, 1);
    EXPECT_EQ(places.take_back(), std::nullopt);
    places.accept(1);
    const auto move = places.take_back();
    ASSERT_TRUE(move);
    EXPECT_EQ(move->from, 3U);
    EXPECT_EQ(move->to, 0U);
    EXPECT_EQ(places.find(1, 1), 0U);
    EXPECT_EQ(places.take_back(), std::nullopt);
}

TEST(StatePlacesTest, ThrowsTheErrorOfAWriteInPlaceOfWaiting) {
    StatePlaces places(1, 2, 1, StatePlaces::Frees::when_stored);
    places.take(0, 0);
    places.fail(std::make_exception_ptr(IoError("no space")));
    EXPECT_EQ(message_of<IoError>([&] { places.take(0, 1); }), "no space");
}

}  // namespace
}  // namespace nearstep::csd
