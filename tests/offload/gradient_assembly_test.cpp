#include "offload/gradient_assembly.hpp"

#include "support/test.hpp"

namespace nearstep::offload {
namespace {

using shard::kTileElems;

class Assembly : public testing::TestWithParam<std::vector<std::size_t>> {
};  // elements of each block

TEST_P(Assembly, HandsOverEveryTileOnceWithItsValuesAndZeroPadding) {
    std::vector<ElementRange> blocks;
    std::size_t elems = 0;
    for (const std::size_t size : GetParam()) {
        blocks.push_back({elems, elems + size});
        elems += size;
    }
    GradientAssembly assembly(blocks);
    for (int step = 0; step < 2; ++step) {
        std::vector<int> seen(shard::tiles_of(elems), 0);
        const auto value_of = [step](std::size_t i) {
            return static_cast<float>(i % 8191) + 1.0F + static_cast<float>(step);
        };
        for (std::size_t b = blocks.size(); b-- > 0;) {
            const std::span<float> space = assembly.space(blocks[b]);
            ASSERT_EQ(space.size(), blocks[b].size());
            for (std::size_t i = 0; i < space.size(); ++i) {
                space[i] = value_of(blocks[b].begin + i);
            }
            const shard::TileRange complete = complete_tiles(blocks[b]);
            const std::span<const float> tiles = assembly.tiles(blocks[b]);
            ASSERT_EQ(tiles.size(), complete.size() * kTileElems);
            for (std::size_t i = 0; i < tiles.size(); ++i) {
                const std::size_t element = complete.begin * kTileElems + i;
                ASSERT_EQ(tiles[i], element < elems ? value_of(element) : 0.0F)
                    << "element " << element;
            }
            for (std::size_t tile = complete.begin; tile < complete.end; ++tile) {
                ++seen[tile];
            }
        }
        for (const int count : seen) {
            EXPECT_EQ(count, 1);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(
    Blocks, Assembly,
    testing::Values(std::vector<std::size_t>{1}, std::vector<std::size_t>{kTileElems},
                    std::vector<std::size_t>{kTileElems + 1, kTileElems - 1},
                    std::vector<std::size_t>{100, 200, 300},
                    std::vector<std::size_t>{70000, 10, 20, 200000, 1, 65535, 131072, 3},
                    std::vector<std::size_t>{10, 400000, 10}));

}  // namespace
}  // namespace nearstep::offload
