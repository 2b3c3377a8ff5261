#include "mpi/exchange/gradient_scatter.hpp"

#include "base/random.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <vector>

namespace nearstep::exchange {
namespace {

using shard::kTileElems;
using trace::Counter;

constexpr std::size_t kTiles = 11;

// The gradient that rank `rank` has for element `i` of the vector.
float gradient_of(int rank, std::size_t i) {
    return static_cast<float>(random_normal(static_cast<std::uint64_t>(rank) + 1, 0, i));
}

std::vector<float> rounded_tile(int rank, std::size_t tile, Dtype dtype) {
    std::vector<float> values(kTileElems);
    for (std::size_t i = 0; i < kTileElems; ++i) {
        values[i] = gradient_of(rank, tile * kTileElems + i);
    }
    std::vector<std::byte> bytes(kTileElems * size_bytes(dtype));
    convert_from_fp32(values.data(), dtype, bytes.data(), kTileElems);
    convert_to_fp32(dtype, bytes.data(), values.data(), kTileElems);
    return values;
}

// The payload of a group by the definition in the header, in one process.
std::vector<std::byte> reference_payload(const std::vector<int>& ranks, std::size_t tile,
                                         const codec::Codec& codec, Dtype dtype) {
    std::vector<float> sum = rounded_tile(ranks.front(), tile, dtype);
    for (std::size_t r = 1; r < ranks.size(); ++r) {
        const std::vector<float> values = rounded_tile(ranks[r], tile, dtype);
        for (std::size_t i = 0; i < kTileElems; ++i) {
            sum[i] += values[i];
        }
    }
    std::vector<std::byte> payload(codec.payload_bytes());
    codec.encode(sum, payload);
    return payload;
}

struct Case {
    const char* name;
    std::string codec;
    Dtype dtype;
    int ranks_per_group;  // 0: all in one
};

class Scatter : public testing::TestWithParam<Case> {};

TEST_P(Scatter, GivesOwnersThePayloadsOfTheDefinition) {
    const auto world = mpi::Communicator::world(std::chrono::seconds(60));
    const Case& test = GetParam();
    const auto codec = codec::make_codec({.name = test.codec, .keep = 0.01, .dtype = test.dtype});
    std::vector<int> devices_per_rank;
    std::vector<int> group(static_cast<std::size_t>(world.size()));
    for (int rank = 0; rank < world.size(); ++rank) {
        devices_per_rank.push_back(rank % 2 == 0 ? 2 : 1);
        group[static_cast<std::size_t>(rank)] =
            test.ranks_per_group == 0 ? 0 : rank / test.ranks_per_group;
    }
    const shard::DeviceMap map(devices_per_rank);
    const shard::Partition partition(
        {.parameters = kTiles * kTileElems - 5,
         .speeds = std::vector<double>(static_cast<std::size_t>(map.devices()), 1.0),
         .subgroup_tiles = 2});
    const mpi::Topology groups = mpi::group_by(group);
    const std::vector<shard::TileRange> rounds = {{4, kTiles}, {3, 4}, {0, 3}};
    trace::Traffic traffic;
    GradientScatter scatter(world,
                            {.partition = &partition,
                             .devices = &map,
                             .codec = codec.get(),
                             .gradient_dtype = test.dtype,
                             .groups = groups,
                             .nodes = groups},
                            rounds, traffic);
    ASSERT_EQ(scatter.sources(), groups.groups());

    std::map<std::size_t, int> seen;
    for (const shard::TileRange round : rounds) {
        std::vector<float> gradient(round.size() * kTileElems);
        for (std::size_t i = 0; i < gradient.size(); ++i) {
            gradient[i] = gradient_of(world.rank(), round.begin * kTileElems + i);
        }
        scatter.scatter(
            round, gradient,
            [&](std::size_t tile, std::span<const std::span<const std::byte>> payloads) {
                ++seen[tile];
                EXPECT_TRUE(tile >= round.begin && tile < round.end);
                ASSERT_EQ(payloads.size(), static_cast<std::size_t>(groups.groups()));
                for (std::size_t g = 0; g < payloads.size(); ++g) {
                    const auto wanted =
                        reference_payload(groups.ranks_of[g], tile, *codec, test.dtype);
                    EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), payloads[g].begin(),
                                           payloads[g].end()))
                        << "tile " << tile << " group " << g;
                }
            });
    }
    std::size_t owned = 0;
    for (std::size_t tile = 0; tile < kTiles; ++tile) {
        if (scatter.owner(tile) == world.rank()) {
            EXPECT_EQ(seen[tile], 1) << "tile " << tile;
            ++owned;
        }
    }
    EXPECT_EQ(seen.size(), owned);

    // Every tile leaves each rank but its slicer once densely, and each group but its owner's once
    // encoded.
    auto sent = traffic.snapshot();
    world.sum(std::span(sent.bytes));
    std::size_t dense = 0;
    for (const std::vector<int>& ranks : groups.ranks_of) {
        dense += ranks.size() - 1;
    }
    EXPECT_EQ(sent[Counter::node_gradients], kTiles * dense * kTileElems * size_bytes(test.dtype));
    EXPECT_EQ(sent[Counter::network_gradients],
              kTiles * (static_cast<std::size_t>(groups.groups()) - 1) * codec->payload_bytes());
}

INSTANTIATE_TEST_SUITE_P(Codecs, Scatter,
                         testing::Values(Case{"DenseOneGroup", "dense", Dtype::bf16, 0},
                                         Case{"DenseFp32Alone", "dense", Dtype::fp32, 1},
                                         Case{"TopkOneGroup", "topk", Dtype::bf16, 0},
                                         Case{"TopkPairs", "topk", Dtype::bf16, 2},
                                         Case{"TopkAlone", "topk", Dtype::fp16, 1}),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace nearstep::exchange
