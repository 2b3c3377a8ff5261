// Payloads of gradients that several ranks' GPUs added up against those of the host; skipped where
// there are fewer GPUs than ranks.
#include "base/random.hpp"
#include "codec/kernels.hpp"
#include "mpi/nccl/group.hpp"
#include "offload/gpu_gradients.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace nearstep::offload {
namespace {

using shard::kTileElems;

constexpr std::chrono::seconds kLimit{30};
// Within a tile, across tiles, and with none of its own.
const std::vector<std::size_t> kBlocks = {70000, 10, 20, 900000, 1, 65535, 131072, 3};

float value_of(int rank, int step, std::size_t i) {
    return static_cast<float>(
        random_normal(static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(step), i));
}

// Members take unequal shares, and not in turns.
int member_of(std::size_t tile, int members) { return static_cast<int>(tile * tile % 7) % members; }

class GroupSum : public testing::Test {
protected:
    GroupSum() : world_(mpi::Communicator::world(kLimit)) {}

    void SetUp() override {
        if (nccl::library_version().empty() || memory::gpus() < world_.size()) {
            GTEST_SKIP() << "there are " << memory::gpus() << " GPUs here for " << world_.size()
                         << " ranks, or no NCCL";
        }
        for (const std::size_t size : kBlocks) {
            blocks_.push_back({elems_, elems_ + size});
            elems_ += size;
        }
        watchdog_.emplace();
        ranks_.emplace(world_, world_.rank(), *watchdog_, kLimit);
    }

    void TearDown() override { ranks_.reset(); }

    GradientGroup group() {
        GradientGroup out{.ranks = &*ranks_, .blocks = {}};
        for (const ElementRange block : blocks_) {
            out.blocks.emplace_back(complete_tiles(block), world_.size(), [this](std::size_t tile) {
                return member_of(tile, world_.size());
            });
        }
        return out;
    }

    // Where backward writes on the GPU, in the order of its default stream.
    void write(GpuGradients& gradients, std::size_t block, int step) const {
        const std::span<float> space = gradients.space(block);
        std::vector<float> values(blocks_[block].size());
        for (std::size_t i = 0; i < values.size(); ++i) {
            values[i] = value_of(world_.rank(), step, blocks_[block].begin + i);
        }
        copy_to_gpu({reinterpret_cast<std::byte*>(space.data()), space.size_bytes()},
                    std::as_bytes(std::span(values)), memory::Stream::of_default());
    }

    // As GradientScatter makes it.
    std::vector<std::byte> host_payload(const codec::Codec& codec, Dtype dtype, int step,
                                        std::size_t tile) const {
        const codec::Kernels& kernels = codec::best_kernels();
        std::vector<float> sum(kTileElems, 0.0F);
        std::vector<std::byte> dense(kTileElems * size_bytes(dtype));
        for (int rank = 0; rank < world_.size(); ++rank) {
            std::vector<float> values(kTileElems, 0.0F);
            for (std::size_t i = 0; i < kTileElems && tile * kTileElems + i < elems_; ++i) {
                values[i] = value_of(rank, step, tile * kTileElems + i);
            }
            kernels.narrow(values.data(), dtype, dense.data(), kTileElems);
            if (rank == 0) {
                kernels.widen(dtype, dense.data(), sum.data(), kTileElems);
            } else {
                kernels.add_widened(dtype, dense.data(), sum.data(), kTileElems);
            }
        }
        std::vector<std::byte> payload(codec.payload_bytes());
        codec.encode(sum, payload, fpga::tile_key(static_cast<std::uint64_t>(step), tile));
        return payload;
    }

    // How many there were.
    std::size_t expect_payloads(GpuGradients& gradients, std::size_t block,
                                const codec::Codec& codec, Dtype dtype, int step) const {
        std::size_t seen = 0;
        const shard::TileRange tiles = complete_tiles(blocks_[block]);
        for (std::size_t tile = tiles.begin; tile < tiles.end; ++tile) {
            if (member_of(tile, world_.size()) != world_.rank()) {
                EXPECT_THROW(gradients.payload(tile), ContractError);
                continue;
            }
            ++seen;
            const std::vector<std::byte> wanted = host_payload(codec, dtype, step, tile);
            const std::span<const std::byte> found = gradients.payload(tile);
            EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), found.begin(), found.end()))
                << codec.name() << " of " << name_of(dtype) << ", step " << step << ", tile "
                << tile;
        }
        return seen;
    }

    mpi::Communicator world_;
    std::vector<ElementRange> blocks_;
    std::size_t elems_ = 0;
    std::optional<nccl::Watchdog> watchdog_;
    std::optional<nccl::Group> ranks_;
};

// Payloads are asked for while the next block is added up, as in training.
TEST_F(GroupSum, HasThePayloadsOfTheHostsSums) {
    for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32}) {
        const auto dense = codec::make_codec({.name = "dense", .dtype = dtype});
        const auto topk = codec::make_codec({.name = "topk", .keep = 0.01, .dtype = dtype});
        const auto q4 = codec::make_codec({.name = "q4", .rounding = fpga::Rounding::stochastic});
        GpuGradients gradients(world_.rank(), blocks_, dense->payload_bytes(), dtype, group());
        int step = 0;
        for (const codec::Codec* codec : {dense.get(), q4.get(), topk.get(), q4.get()}) {
            gradients.begin_step(*codec, static_cast<std::uint64_t>(step));
            std::optional<std::size_t> before;
            std::size_t seen = 0;
            for (std::size_t block = blocks_.size(); block-- > 0;) {
                write(gradients, block, step);
                gradients.encode(block);
                if (before) {
                    seen += expect_payloads(gradients, *before, *codec, dtype, step);
                }
                before = block;
            }
            seen += expect_payloads(gradients, *before, *codec, dtype, step);
            std::vector<double> all = {static_cast<double>(seen)};
            world_.sum(std::span(all));
            EXPECT_EQ(all.front(), static_cast<double>(shard::tiles_of(elems_)));
            ++step;
        }
    }
}

}  // namespace
}  // namespace nearstep::offload
