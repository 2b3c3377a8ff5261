// Spreads ranks over made-up nodes.
#include "locality/node_choice.hpp"

#include <gtest/gtest.h>

namespace nearstep::locality {
namespace {

using Ints = std::vector<int>;

const std::vector<std::vector<double>> kTwo{{10, 32}, {32, 10}};

TEST(ChooseNodes, TakesTheNearest) {
    EXPECT_EQ(choose_nodes({{0, 1}, {1, 0}}, kTwo), (Ints{1, 0}));
    EXPECT_EQ(choose_nodes({{0, 9}, {5, 1}, {0, 9}, {9, 0}}, kTwo), (Ints{1, 0, 1, 0}));
}

TEST(ChooseNodes, SpreadsRanksWhoseDevicesAreOnOneNode) {
    EXPECT_EQ(choose_nodes({{1, 0}, {9, 0}}, kTwo), (Ints{1, 0}));
    EXPECT_EQ(choose_nodes({{1, 0}, {1, 0}, {1, 0}, {1, 0}, {1, 0}}, kTwo), (Ints{0, 0, 0, 1, 1}));
}

TEST(ChooseNodes, GoesByTheirOrderWithoutDevices) {
    EXPECT_EQ(choose_nodes({{0, 0}, {0, 0}, {0, 0}, {0, 0}}, kTwo), (Ints{0, 0, 1, 1}));
}

TEST(ChooseNodes, BindsNobodyWhereRanksAreFewerThanNodes) {
    EXPECT_TRUE(choose_nodes({{1, 0}}, kTwo).empty());
}

TEST(ChooseNodes, PrefersANeighbourToAFarNode) {
    const std::vector<std::vector<double>> four{
        {10, 12, 32, 32}, {12, 10, 32, 32}, {32, 32, 10, 12}, {32, 32, 12, 10}};
    EXPECT_EQ(choose_nodes({{0, 0, 0, 4}, {0, 0, 0, 3}, {4, 0, 0, 0}, {3, 0, 0, 0}}, four),
              (Ints{3, 2, 0, 1}));
}

}  // namespace
}  // namespace nearstep::locality
