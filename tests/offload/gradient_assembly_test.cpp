// Tiles have the values that blocks' gradients have, in any format.
#include "offload/gradient_assembly.hpp"

#include "support/test.hpp"

namespace nearstep::offload {
namespace {

using shard::kTileElems;

class Assembly : public testing::TestWithParam<std::vector<std::size_t>> {
};  // elements of each block

// A block's gradient in parts of several formats, every third of zeros, and half its factor.
struct Parts {
    Parts(ElementRange block, int step) {
        for (std::size_t at = block.begin, n = 0; at < block.end; at = ends.back(), ++n) {
            const std::size_t elems =
                std::min<std::size_t>(1 + 3 * (at - block.begin), block.end - at);
            const Dtype dtype = n % 3 == 1 ? Dtype::bf16 : Dtype::fp32;
            std::vector<float> values(elems);
            for (std::size_t i = 0; i < elems; ++i) {
                values[i] = n % 3 == 2 ? 0.0F : value_of(at + i, step);
                wanted.push_back(values[i] / 2);
            }
            std::vector<std::byte>& stored = memory.emplace_back(elems * size_bytes(dtype));
            convert_from_fp32(values.data(), dtype, stored.data(), elems);
            parts.push_back({n % 3 == 2 ? nullptr : stored.data(), dtype, elems});
            ends.push_back(at + elems);
        }
    }

    // An integer that bf16 has.
    static float value_of(std::size_t element, int step) {
        return static_cast<float>(element % 251 + 1 + static_cast<std::size_t>(step));
    }

    shard::Gradient gradient() const { return {.parts = parts, .factor = 0.5F}; }

    std::vector<std::vector<std::byte>> memory;
    std::vector<shard::GradientPart> parts;
    std::vector<std::size_t> ends;
    std::vector<float> wanted;
};

TEST_P(Assembly, ReadsEveryTileOnceWithItsValuesAndZeroPadding) {
    std::vector<ElementRange> blocks;
    std::size_t elems = 0;
    for (const std::size_t size : GetParam()) {
        blocks.push_back({elems, elems + size});
        elems += size;
    }
    GradientAssembly assembly(blocks);
    for (int step = 0; step < 2; ++step) {
        std::vector<int> seen(shard::tiles_of(elems), 0);
        std::vector<float> wanted(seen.size() * kTileElems, 0.0F);
        for (std::size_t b = blocks.size(); b-- > 0;) {
            const Parts of_block(blocks[b], step);
            std::ranges::copy(of_block.wanted, &wanted[blocks[b].begin]);
            assembly.take(blocks[b], of_block.gradient());
            const shard::TileRange complete = complete_tiles(blocks[b]);
            for (std::size_t tile = complete.begin; tile < complete.end; ++tile) {
                std::vector<float> values(kTileElems, -1.0F);
                assembly.read(tile, values);
                EXPECT_TRUE(std::ranges::equal(
                    values, std::span(wanted).subspan(tile * kTileElems, kTileElems)))
                    << "tile " << tile;
                ++seen[tile];
            }
            assembly.carry();
        }
        for (const int count : seen) {
            EXPECT_EQ(count, 1);
        }
    }
}

TEST(AssemblyTest, RefusesAGradientThatLacksAnElement) {
    const ElementRange block{0, 10};
    const std::vector<float> values(block.size());
    const shard::GradientPart part{values.data(), Dtype::fp32, block.size() - 1};
    GradientAssembly assembly({&block, 1});
    EXPECT_THROW(assembly.take(block, {.parts = {&part, 1}}), ContractError);
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
