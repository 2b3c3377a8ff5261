// Compares payloads that the GPU cut and encoded with those of the host. Skipped without a GPU.
#include "offload/gpu_gradients.hpp"

#include "base/random.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace nearstep::offload {
namespace {

using shard::kTileElems;

constexpr Dtype kDtype = Dtype::bf16;

std::uint64_t key_of(int step) { return 70 + static_cast<std::uint64_t>(step); }

// The gradient of element `i` in a step.
float value_of(int step, std::size_t i) {
    return static_cast<float>(random_normal(static_cast<std::uint64_t>(step), 3, i));
}

class Blocks : public testing::TestWithParam<std::vector<std::size_t>> {  // elements of each
protected:
    void SetUp() override {
        if (memory::gpus() == 0) {
            GTEST_SKIP() << "there is no GPU here";
        }
        memory::use_gpu(0);
        for (const std::size_t size : GetParam()) {
            blocks_.push_back({elems_, elems_ + size});
            elems_ += size;
        }
        seen_.resize(shard::tiles_of(elems_));
    }

    // Writes like backward: on the GPU, in the order of its default stream.
    void write(GpuGradients& gradients, std::size_t block, int step) {
        const std::span<float> space = gradients.space(block);
        std::vector<float> values(blocks_[block].size());
        ASSERT_EQ(space.size(), values.size());
        for (std::size_t i = 0; i < values.size(); ++i) {
            values[i] = value_of(step, blocks_[block].begin + i);
        }
        copy_to_gpu({reinterpret_cast<std::byte*>(space.data()), space.size_bytes()},
                    std::as_bytes(std::span(values)), memory::Stream::of_default());
    }

    std::vector<std::byte> host_payload(const codec::Codec& codec, int step,
                                        std::size_t tile) const {
        std::vector<float> values(kTileElems, 0.0F);
        for (std::size_t i = 0; i < kTileElems && tile * kTileElems + i < elems_; ++i) {
            values[i] = from_bf16(to_bf16(value_of(step, tile * kTileElems + i)));
        }
        std::vector<std::byte> payload(codec.payload_bytes());
        codec.encode(values, payload, arith::tile_key(key_of(step), tile));
        return payload;
    }

    void expect_payloads(GpuGradients& gradients, std::size_t block, const codec::Codec& codec,
                         int step) {
        const shard::TileRange tiles = complete_tiles(blocks_[block]);
        for (std::size_t tile = tiles.begin; tile < tiles.end; ++tile) {
            const std::vector<std::byte> wanted = host_payload(codec, step, tile);
            const std::span<const std::byte> found = gradients.payload(tile);
            EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), found.begin(), found.end()))
                << "step " << step << ", tile " << tile;
            ++seen_[tile];
        }
    }

    std::vector<ElementRange> blocks_;
    std::size_t elems_ = 0;
    std::vector<int> seen_;  // per tile
};

// A dense step and one with codes. Payloads are read while the next block is encoded, as in
// training.
TEST_P(Blocks, GiveThePayloadsOfTheHost) {
    const auto dense = codec::make_codec({.name = "dense", .dtype = kDtype});
    const auto codes = codec::make_codec({.name = "q4", .rounding = arith::Rounding::stochastic});
    GpuGradients gradients(0, blocks_, dense->payload_bytes(), kDtype);
    int step = 0;
    for (const codec::Codec* codec : {dense.get(), codes.get(), codes.get()}) {
        gradients.begin_step(*codec, key_of(step));
        std::optional<std::size_t> before;
        for (std::size_t block = blocks_.size(); block-- > 0;) {
            write(gradients, block, step);
            gradients.encode(block);
            if (before) {
                expect_payloads(gradients, *before, *codec, step);
            }
            before = block;
        }
        expect_payloads(gradients, *before, *codec, step);
        ++step;
        EXPECT_EQ(seen_, std::vector<int>(seen_.size(), step));
    }
    EXPECT_THROW(gradients.payload(shard::tiles_of(elems_)), ContractError);
}

INSTANTIATE_TEST_SUITE_P(
    OfAllSizes, Blocks,
    testing::Values(std::vector<std::size_t>{1}, std::vector<std::size_t>{kTileElems},
                    std::vector<std::size_t>{kTileElems + 1, kTileElems - 1},
                    std::vector<std::size_t>{100, 200, 300},
                    std::vector<std::size_t>{70000, 10, 20, 200000, 1, 65535, 131072, 3},
                    std::vector<std::size_t>{10, 400000, 10}));

}  // namespace
}  // namespace nearstep::offload
