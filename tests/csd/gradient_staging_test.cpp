// Tests that tiles that arrive in any order become large writes, and a failed write an error.
#include "csd/gradient_staging.hpp"

#include "base/executor.hpp"
#include "support/test.hpp"

#include <atomic>
#include <cerrno>

namespace nearstep::csd {
namespace {

constexpr std::size_t kStagedTiles = 300;  // more than fit in memory at once
constexpr std::int64_t kBegin = 3 * static_cast<std::int64_t>(store::kPageBytes);

class GradientStagingTest : public testing::Test {
protected:
    static float value(std::size_t tile, std::size_t i) {
        return static_cast<float>(tile) + static_cast<float>(i) * 0x1p-17F;
    }

    store::Volume& volume() {
        if (!volume_) {
            volume_ = std::make_unique<store::Volume>(store::VolumeSettings{
                .files = {folder_.file("a"), folder_.file("b"), folder_.file("c")},
                .bytes = static_cast<std::size_t>(kBegin) + kStagedTiles * kTileBytes,
                .chunk_bytes = 16 * store::kPageBytes,
                .filter = [this](const store::IoRequest& request, std::int64_t result) {
                    writes_ += request.direction == store::Direction::write ? 1 : 0;
                    return is_failing_ ? -EIO : result;
                }});
            volume_->reserve();
        }
        return *volume_;
    }

    // Puts the tiles; with one thread in this order.
    void put(GradientStaging& staging, const std::vector<std::size_t>& tiles, int threads) {
        Executor pool(threads - 1);
        std::vector<std::vector<float>> scratch(static_cast<std::size_t>(threads));
        pool.share(tiles.size(), [&](std::size_t i, int member) {
            std::vector<float>& values = scratch[static_cast<std::size_t>(member)];
            values.resize(shard::kTileElems);
            for (std::size_t at = 0; at < values.size(); ++at) {
                values[at] = value(tiles[i], at);
            }
            staging.put(tiles[i], values);
            std::ranges::fill(values, -1.0F);
        });
    }

    void expect_stored(const std::vector<std::size_t>& tiles) {
        memory::Buffer seen(kTileBytes);
        for (const std::size_t tile : tiles) {
            volume()
                .read(seen.span(), kBegin + static_cast<std::int64_t>(tile * kTileBytes))
                .wait();
            const auto* values = reinterpret_cast<const float*>(seen.span().data());
            for (std::size_t i = 0; i < shard::kTileElems; ++i) {
                ASSERT_EQ(values[i], value(tile, i)) << "tile " << tile << ", value " << i;
            }
        }
    }

    static std::vector<std::size_t> all_tiles() {
        std::vector<std::size_t> tiles(kStagedTiles);
        std::iota(tiles.begin(), tiles.end(), 0);
        return tiles;
    }

    static std::vector<std::size_t> shuffled(std::vector<std::size_t> tiles) {
        for (std::size_t i = tiles.size(); i > 1; --i) {
            std::swap(tiles[i - 1], tiles[random_bits(5, 0, i) % i]);
        }
        return tiles;
    }

    ScratchFolder folder_;
    std::atomic<int> writes_ = 0;
    std::atomic<bool> is_failing_ = false;
    std::unique_ptr<store::Volume> volume_;
};

TEST_F(GradientStagingTest, StoresTilesThatComeInAnyOrderFromAnyThread) {
    GradientStaging staging(volume(), kBegin);
    for (const int threads : {1, 4}) {
        for (const bool is_shuffled : {false, true}) {
            put(staging, is_shuffled ? shuffled(all_tiles()) : all_tiles(), threads);
            staging.finish();
            expect_stored(all_tiles());
        }
    }
}

TEST_F(GradientStagingTest, StoresTilesWithHolesBetweenThem) {
    std::vector<std::size_t> tiles = all_tiles();
    std::erase_if(tiles, [](std::size_t tile) { return random_bits(9, 0, tile) % 3 == 0; });
    GradientStaging staging(volume(), kBegin);
    put(staging, tiles, 3);
    staging.finish();
    expect_stored(tiles);
}

// Rounds come in reverse order. A write that spans two rounds waits for the second.
TEST_F(GradientStagingTest, WritesNeighboursAsOne) {
    GradientStaging staging(volume(), kBegin);
    const int before = writes_;
    for (std::size_t end = 80; end > 0; end -= 20) {
        std::vector<std::size_t> round(20);
        std::iota(round.begin(), round.end(), end - 20);
        put(staging, round, 1);
    }
    staging.finish();
    // Ten regions of 8 tiles, each written to three files in pieces of at most 2 MiB.
    EXPECT_LE(writes_ - before, 10 * 3);
}

TEST_F(GradientStagingTest, ReportsAWriteThatFailed) {
    GradientStaging staging(volume(), kBegin);
    is_failing_ = true;
    EXPECT_THROW(
        {
            put(staging, all_tiles(), 1);
            staging.finish();
        },
        IoError);
    is_failing_ = false;
}

}  // namespace
}  // namespace nearstep::csd
