// Compares payloads of gradients that GPUs summed and exchanged with those of the host. Skipped
// with fewer GPUs than ranks.
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
// Blocks inside one tile, across tiles, and without a tile of their own.
const std::vector<std::size_t> kBlocks = {70000, 10, 20, 900000, 1, 65535, 131072, 3};

float value_of(int rank, int step, std::size_t i) {
    return static_cast<float>(
        random_normal(static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(step), i));
}

// Gives members unequal, irregular shares.
int member_of(std::size_t tile, int members) { return static_cast<int>(tile * tile % 7) % members; }

// The rank that takes a tile's payloads. With several ranks the last takes none.
int taker_of(std::size_t tile, int ranks) {
    return static_cast<int>(tile * 5 % 11) % std::max(ranks - 1, 1);
}

// The ranks of one group, which sum their gradients.
struct Ranks {
    int first = 0;
    int count = 1;
    int group = 0;
};

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

    Ranks everyone() const { return {.first = 0, .count = world_.size(), .group = 0}; }

    GradientGroup group_of(nccl::Group& ranks) const {
        GradientGroup out{.ranks = &ranks, .blocks = {}};
        for (const ElementRange block : blocks_) {
            out.blocks.emplace_back(complete_tiles(block), ranks.size(), [&](std::size_t tile) {
                return member_of(tile, ranks.size());
            });
        }
        return out;
    }

    // For groups of `in_group` ranks.
    PayloadGroup payload_group(int in_group) {
        const MakersAndTakers ranks_of{
            .ranks = world_.size(),
            .groups = world_.size() / in_group,
            .maker = [=](int group,
                         std::size_t tile) { return group * in_group + member_of(tile, in_group); },
            .taker = [this](std::size_t tile) { return taker_of(tile, world_.size()); }};
        PayloadGroup out{.ranks = &*ranks_, .blocks = {}};
        for (const ElementRange block : blocks_) {
            out.blocks.emplace_back(complete_tiles(block), world_.rank(), world_.rank() / in_group,
                                    ranks_of);
        }
        return out;
    }

    // Writes like backward: on the GPU, in the order of its default stream.
    void write(GpuGradients& gradients, std::size_t block, int step) const {
        const std::span<float> space = gradients.space(block);
        std::vector<float> values(blocks_[block].size());
        for (std::size_t i = 0; i < values.size(); ++i) {
            values[i] = value_of(world_.rank(), step, blocks_[block].begin + i);
        }
        copy_to_gpu({reinterpret_cast<std::byte*>(space.data()), space.size_bytes()},
                    std::as_bytes(std::span(values)), memory::Stream::of_default());
    }

    static std::uint64_t key_of(int step, int group) {
        return static_cast<std::uint64_t>(10 * step + group);
    }

    // The payload that GradientScatter makes.
    std::vector<std::byte> host_payload(const codec::Codec& codec, Dtype dtype, int step,
                                        std::size_t tile, const Ranks& ranks) const {
        const codec::Kernels& kernels = codec::best_kernels();
        std::vector<float> sum(kTileElems, 0.0F);
        std::vector<std::byte> dense(kTileElems * size_bytes(dtype));
        for (int rank = ranks.first; rank < ranks.first + ranks.count; ++rank) {
            std::vector<float> values(kTileElems, 0.0F);
            for (std::size_t i = 0; i < kTileElems && tile * kTileElems + i < elems_; ++i) {
                values[i] = value_of(rank, step, tile * kTileElems + i);
            }
            kernels.narrow(values.data(), dtype, dense.data(), kTileElems);
            if (rank == ranks.first) {
                kernels.widen(dtype, dense.data(), sum.data(), kTileElems);
            } else {
                kernels.add_widened(dtype, dense.data(), sum.data(), kTileElems);
            }
        }
        std::vector<std::byte> payload(codec.payload_bytes());
        codec.encode(sum, payload, arith::tile_key(key_of(step, ranks.group), tile));
        return payload;
    }

    // Returns the number of payloads.
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
            const std::vector<std::byte> wanted =
                host_payload(codec, dtype, step, tile, everyone());
            const std::span<const std::byte> found = gradients.payload(tile);
            EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), found.begin(), found.end()))
                << codec.name() << " of " << name_of(dtype) << ", step " << step << ", tile "
                << tile;
        }
        return seen;
    }

    // The same for payloads that this rank takes.
    std::size_t expect_arrived(GpuGradients& gradients, std::size_t block,
                               const codec::Codec& codec, Dtype dtype, int step,
                               int in_group) const {
        std::size_t seen = 0;
        const shard::TileRange tiles = complete_tiles(blocks_[block]);
        for (std::size_t tile = tiles.begin; tile < tiles.end; ++tile) {
            if (taker_of(tile, world_.size()) != world_.rank()) {
                EXPECT_THROW(gradients.arrived(tile, 0), ContractError);
                continue;
            }
            for (int group = 0; group < world_.size() / in_group; ++group) {
                ++seen;
                const std::vector<std::byte> wanted =
                    host_payload(codec, dtype, step, tile,
                                 {.first = group * in_group, .count = in_group, .group = group});
                const std::span<const std::byte> found = gradients.arrived(tile, group);
                EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), found.begin(), found.end()))
                    << codec.name() << " of groups of " << in_group << ", step " << step
                    << ", tile " << tile << ", group " << group;
            }
        }
        return seen;
    }

    // Runs steps with several codecs. Payloads are read while the next block is summed, as in
    // training.
    void bring_payloads(int in_group, nccl::Group* group) {
        const auto dense = codec::make_codec({.name = "dense"});
        const auto topk = codec::make_codec({.name = "topk", .keep = 0.01});
        const auto q4 = codec::make_codec({.name = "q4", .rounding = arith::Rounding::stochastic});
        GpuGradients gradients(world_.rank(), blocks_, dense->payload_bytes(), Dtype::bf16,
                               group != nullptr ? std::optional(group_of(*group)) : std::nullopt,
                               payload_group(in_group));
        EXPECT_TRUE(gradients.are_brought());
        int step = 0;
        for (const codec::Codec* codec : {dense.get(), q4.get(), topk.get(), q4.get()}) {
            gradients.begin_step(*codec, key_of(step, world_.rank() / in_group));
            std::optional<std::size_t> before;
            std::size_t seen = 0;
            for (std::size_t block = blocks_.size(); block-- > 0;) {
                write(gradients, block, step);
                gradients.encode(block);
                if (before) {
                    seen += expect_arrived(gradients, *before, *codec, Dtype::bf16, step, in_group);
                }
                before = block;
            }
            seen += expect_arrived(gradients, *before, *codec, Dtype::bf16, step, in_group);
            std::vector<double> all = {static_cast<double>(seen)};
            world_.sum(std::span(all));
            EXPECT_EQ(all.front(),
                      static_cast<double>(shard::tiles_of(elems_) *
                                          static_cast<std::size_t>(world_.size() / in_group)));
            ++step;
        }
    }

    mpi::Communicator world_;
    std::vector<ElementRange> blocks_;
    std::size_t elems_ = 0;
    std::optional<nccl::Watchdog> watchdog_;
    std::optional<nccl::Group> ranks_;
};

// Payloads are read while the next block is summed, as in training.
TEST_F(GroupSum, HasThePayloadsOfTheHostsSums) {
    for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32}) {
        const auto dense = codec::make_codec({.name = "dense", .dtype = dtype});
        const auto topk = codec::make_codec({.name = "topk", .keep = 0.01, .dtype = dtype});
        const auto q4 = codec::make_codec({.name = "q4", .rounding = arith::Rounding::stochastic});
        GpuGradients gradients(world_.rank(), blocks_, dense->payload_bytes(), dtype,
                               group_of(*ranks_));
        int step = 0;
        for (const codec::Codec* codec : {dense.get(), q4.get(), topk.get(), q4.get()}) {
            gradients.begin_step(*codec, key_of(step, 0));
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

TEST_F(GroupSum, BringsPayloadsOfRanksByThemselvesToTheirTakers) { bring_payloads(1, nullptr); }

TEST_F(GroupSum, BringsPayloadsOfAllRanksToTheirTakers) {
    if (world_.size() == 1) {
        GTEST_SKIP() << "a rank has no group";
    }
    nccl::Group group(world_, world_.rank(), *watchdog_, kLimit);
    bring_payloads(world_.size(), &group);
}

TEST_F(GroupSum, BringsPayloadsOfPairsToTheirTakers) {
    if (world_.size() < 4) {
        GTEST_SKIP() << "there is one pair of ranks";
    }
    const mpi::Communicator pair = world_.split(world_.rank() / 2);
    nccl::Group group(pair, world_.rank(), *watchdog_, kLimit);
    bring_payloads(2, &group);
}

}  // namespace
}  // namespace nearstep::offload
