#include "mpi/exchange/gradient_scatter.hpp"

#include "base/error.hpp"
#include "base/random.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace nearstep::exchange {
namespace {

using shard::kTileElems;
using trace::Counter;

constexpr std::size_t kTiles = 11;

// The gradient of rank `rank` for element `i` of the vector.
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

struct Encoding {
    const codec::Codec& codec;
    std::uint64_t random_key = 0;
};

// The payload of group `group` by the definition in the header, in one process. `residual`: the
// tile's residual from the last step; receives this step's.
std::vector<std::byte> reference_payload(const std::vector<int>& ranks, int group, std::size_t tile,
                                         const Encoding& encoding, Dtype dtype,
                                         std::vector<float>* residual = nullptr) {
    std::vector<float> sum = rounded_tile(ranks.front(), tile, dtype);
    for (std::size_t r = 1; r < ranks.size(); ++r) {
        const std::vector<float> values = rounded_tile(ranks[r], tile, dtype);
        for (std::size_t i = 0; i < kTileElems; ++i) {
            sum[i] += values[i];
        }
    }
    for (std::size_t i = 0; residual != nullptr && i < kTileElems; ++i) {
        sum[i] += (*residual)[i];
    }
    std::vector<std::byte> payload(encoding.codec.payload_bytes());
    const std::uint64_t key =
        random_bits(encoding.random_key, 0, static_cast<std::uint64_t>(group));
    encoding.codec.encode(sum, payload, arith::tile_key(key, tile));
    if (residual != nullptr) {
        std::vector<float> decoded(kTileElems, 0.0F);
        encoding.codec.decode_add(payload, 0, decoded);
        for (std::size_t i = 0; i < kTileElems; ++i) {
            (*residual)[i] = sum[i] - decoded[i];
        }
    }
    return payload;
}

struct Case {
    std::string codec;
    Dtype dtype;
    int ranks_per_group;  // 0: all in one
    arith::Rounding rounding = arith::Rounding::nearest;
};

const std::vector<shard::TileRange> kRounds = {{4, kTiles}, {3, 4}, {0, 3}};

// Ranks with one or two devices, in groups of the given number of ranks.
struct Layout {
    Layout(int ranks, int ranks_per_group) : owners({copy_of(ranks)}) {
        std::vector<int> group;
        for (int rank = 0; rank < ranks; ++rank) {
            group.push_back(ranks_per_group == 0 ? 0 : rank / ranks_per_group);
        }
        groups = mpi::group_by(group);
    }

    static std::vector<int> devices_of(int ranks) {
        std::vector<int> devices;
        for (int rank = 0; rank < ranks; ++rank) {
            devices.push_back(rank % 2 == 0 ? 2 : 1);
        }
        return devices;
    }
    static shard::Replica copy_of(int ranks) {
        std::vector<int> all(static_cast<std::size_t>(ranks));
        std::iota(all.begin(), all.end(), 0);
        const shard::DeviceMap map(devices_of(ranks));
        return {.ranks = all,
                .devices = map,
                .partition = shard::Partition(
                    {.parameters = kTiles * kTileElems - 5,
                     .speeds = std::vector<double>(static_cast<std::size_t>(map.devices()), 1.0),
                     .subgroup_tiles = 2})};
    }

    shard::Ownership owners;
    mpi::Topology groups;
};

std::vector<float> gradient_of_round(int rank, shard::TileRange round) {
    std::vector<float> gradient(round.size() * kTileElems);
    for (std::size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = gradient_of(rank, round.begin * kTileElems + i);
    }
    return gradient;
}

// No memory of 2 GiB is allocated.
TEST(ScatterOfLargeRounds, IsRefusedWhereAMessageWouldBeTooLarge) {
    const auto world = mpi::Communicator::world(std::chrono::seconds(60));
    if (world.size() == 1) {
        GTEST_SKIP() << "one rank sends no message";
    }
    constexpr std::size_t kLargeTiles = std::size_t{1} << 14U;  // 2 GiB of bf16
    std::vector<int> all(static_cast<std::size_t>(world.size()));
    std::iota(all.begin(), all.end(), 0);
    const shard::Replica copy{.ranks = all,
                              .devices = shard::DeviceMap(std::vector<int>(all.size(), 1)),
                              .partition = shard::Partition({.parameters = kLargeTiles * kTileElems,
                                                             .speeds = std::vector(all.size(), 1.0),
                                                             .subgroup_tiles = kLargeTiles,
                                                             .least_stripes = 1})};
    const shard::Ownership owners({copy});
    const auto codec = codec::make_codec({.name = "dense"});
    const mpi::Topology groups = mpi::group_by(std::vector<int>(all.size(), 0));
    const std::vector<shard::TileRange> rounds = {{0, kLargeTiles}};
    trace::Traffic traffic;
    const auto make = [&] {
        const GradientScatter scatter(
            world, {.owners = &owners, .codec = codec.get(), .groups = groups, .nodes = groups},
            rounds, traffic);
    };
    try {
        make();
        FAIL() << "it was made";
    } catch (const ConfigError& error) {
        EXPECT_NE(std::string(error.what()).find("lower csd.subgroup_tiles"), std::string::npos);
    }
}

class Scatter : public testing::TestWithParam<Case> {};

TEST_P(Scatter, GivesOwnersThePayloadsOfTheDefinition) {
    const auto world = mpi::Communicator::world(std::chrono::seconds(60));
    const Case& test = GetParam();
    const auto codec = codec::make_codec(
        {.name = test.codec, .keep = 0.01, .dtype = test.dtype, .rounding = test.rounding});
    const Layout layout(world.size(), test.ranks_per_group);
    const mpi::Topology& groups = layout.groups;
    trace::Traffic traffic;
    GradientScatter scatter(world,
                            {.owners = &layout.owners,
                             .codec = codec.get(),
                             .gradient_dtype = test.dtype,
                             .groups = groups,
                             .nodes = groups},
                            kRounds, traffic);
    ASSERT_EQ(scatter.sources(), groups.groups());
    scatter.begin_step({.codec = codec.get(), .random_key = 77});

    std::map<std::size_t, int> seen;
    for (const shard::TileRange round : kRounds) {
        scatter.scatter(
            round, gradient_of_round(world.rank(), round),
            [&](std::size_t tile, std::span<const std::span<const std::byte>> payloads) {
                ++seen[tile];
                EXPECT_TRUE(tile >= round.begin && tile < round.end);
                ASSERT_EQ(payloads.size(), static_cast<std::size_t>(groups.groups()));
                for (std::size_t g = 0; g < payloads.size(); ++g) {
                    const auto wanted = reference_payload(groups.ranks_of[g], static_cast<int>(g),
                                                          tile, {*codec, 77}, test.dtype);
                    EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), payloads[g].begin(),
                                           payloads[g].end()))
                        << "tile " << tile << " group " << g;
                }
            });
    }
    std::size_t owned = 0;
    for (std::size_t tile = 0; tile < kTiles; ++tile) {
        if (layout.owners.owns(world.rank(), tile)) {
            EXPECT_EQ(seen[tile], 1) << "tile " << tile;
            ++owned;
        }
    }
    EXPECT_EQ(seen.size(), owned);

    // Each tile is sent once dense by every rank but its slicer, and once encoded by every group
    // but its owner's.
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

// Even ranks encode by the definition themselves; odd ranks leave it to the scatter.
TEST(ScatterOfPayloads, AreThoseThatARankMadeItself) {
    const auto world = mpi::Communicator::world(std::chrono::seconds(60));
    const auto codec = codec::make_codec({.name = "q4", .rounding = arith::Rounding::stochastic});
    const Layout layout(world.size(), 1);
    trace::Traffic traffic;
    GradientScatter scatter(world,
                            {.owners = &layout.owners,
                             .codec = codec.get(),
                             .groups = layout.groups,
                             .nodes = layout.groups},
                            kRounds, traffic);
    scatter.begin_step({.codec = codec.get(), .random_key = 9});
    std::vector<std::byte> payload;
    const FindPayload find = [&](std::size_t tile) -> std::span<const std::byte> {
        payload.resize(codec->payload_bytes());
        codec->encode(rounded_tile(world.rank(), tile, Dtype::bf16), payload,
                      arith::tile_key(scatter.source_key(), tile));
        return payload;
    };
    std::size_t seen = 0;
    const TileSink sink = [&](std::size_t tile,
                              std::span<const std::span<const std::byte>> payloads) {
        ++seen;
        ASSERT_EQ(payloads.size(), static_cast<std::size_t>(world.size()));
        for (std::size_t source = 0; source < payloads.size(); ++source) {
            const auto wanted =
                reference_payload(layout.groups.ranks_of[source], static_cast<int>(source), tile,
                                  {*codec, 9}, Dtype::bf16);
            EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), payloads[source].begin(),
                                   payloads[source].end()))
                << "tile " << tile << " source " << source;
        }
    };
    for (const shard::TileRange round : kRounds) {
        if (world.rank() % 2 == 0) {
            scatter.scatter_payloads(round, find, sink);
        } else {
            scatter.scatter(round, gradient_of_round(world.rank(), round), sink);
        }
    }
    std::size_t owned = 0;
    for (std::size_t tile = 0; tile < kTiles; ++tile) {
        owned += layout.owners.copy(0).owner_of_tile(tile) == world.rank() ? 1 : 0;
    }
    EXPECT_EQ(seen, owned);
}

// Payloads that arrived by other means are handed over, and counted as if sent here.
TEST(ScatterOfArrived, IsHandedOverAndCountedAsWhatIsSent) {
    const auto world = mpi::Communicator::world(std::chrono::seconds(60));
    const auto codec = codec::make_codec({.name = "q4", .rounding = arith::Rounding::stochastic});
    for (const int ranks_per_group : {1, 2}) {
        const Layout layout(world.size(), ranks_per_group);
        const mpi::Topology nodes = mpi::group_by(Layout(world.size(), 2).groups.group_of);
        trace::Traffic sent;
        trace::Traffic brought;
        const auto make = [&](trace::Traffic& traffic) {
            return GradientScatter(world,
                                   {.owners = &layout.owners,
                                    .codec = codec.get(),
                                    .groups = layout.groups,
                                    .nodes = nodes},
                                   kRounds, traffic);
        };
        GradientScatter sending = make(sent);
        GradientScatter handing = make(brought);
        sending.begin_step({.codec = codec.get(), .random_key = 9});
        handing.begin_step({.codec = codec.get(), .random_key = 9});
        // The payloads of each tile as they were sent.
        std::map<std::size_t, std::vector<std::vector<std::byte>>> taken;
        for (const shard::TileRange round : kRounds) {
            sending.scatter(
                round, gradient_of_round(world.rank(), round),
                [&](std::size_t tile, std::span<const std::span<const std::byte>> payloads) {
                    for (const std::span<const std::byte> payload : payloads) {
                        taken[tile].emplace_back(payload.begin(), payload.end());
                    }
                });
        }
        std::size_t seen = 0;
        for (const shard::TileRange round : kRounds) {
            handing.hand_over_arrived(
                round,
                [&](std::size_t tile, int group) -> std::span<const std::byte> {
                    return taken.at(tile).at(static_cast<std::size_t>(group));
                },
                [&](std::size_t tile, std::span<const std::span<const std::byte>> payloads) {
                    ++seen;
                    EXPECT_TRUE(tile >= round.begin && tile < round.end);
                    const auto& wanted = taken.at(tile);
                    EXPECT_TRUE(std::equal(
                        wanted.begin(), wanted.end(), payloads.begin(), payloads.end(),
                        [](const auto& a, const auto& b) { return std::ranges::equal(a, b); }));
                });
        }
        EXPECT_EQ(seen, taken.size());
        EXPECT_EQ(brought.snapshot().bytes, sent.snapshot().bytes);
    }
}

std::vector<Case> all_cases() {
    std::vector<Case> cases = {{"dense", Dtype::fp32, 1}, {"topk", Dtype::fp16, 1}};
    for (const std::string& name : codec::codec_names()) {
        for (const int ranks_per_group : {0, 1, 2}) {
            cases.push_back({name, Dtype::bf16, ranks_per_group});
        }
        if (codec::has_block_codes(name)) {
            cases.push_back({name, Dtype::bf16, 1, arith::Rounding::stochastic});
        }
    }
    return cases;
}

INSTANTIATE_TEST_SUITE_P(Codecs, Scatter, testing::ValuesIn(all_cases()), [](const auto& one) {
    return one.param.codec + "_" + name_of(one.param.dtype) +
           (one.param.ranks_per_group == 0
                ? "_one_group"
                : "_groups_of_" + std::to_string(one.param.ranks_per_group)) +
           (one.param.rounding == arith::Rounding::stochastic ? "_stochastic" : "");
});

// A dense warm-up step, then error feedback with one skipped step, compared with the definition.
class Feedback : public testing::TestWithParam<std::string> {};

TEST_P(Feedback, AddsWhatTheLastAcceptedStepLost) {
    const auto world = mpi::Communicator::world(std::chrono::seconds(60));
    const auto codec = codec::make_codec({.name = GetParam(), .keep = 0.01});
    const auto dense = codec::make_codec({.name = "dense"});
    const Layout layout(world.size(), 2);
    const mpi::Topology& groups = layout.groups;
    trace::Traffic traffic;
    GradientScatter scatter(world,
                            {.owners = &layout.owners,
                             .codec = codec.get(),
                             .most_payload_bytes = dense->payload_bytes(),
                             .has_residual = true,
                             .groups = groups,
                             .nodes = groups},
                            kRounds, traffic);
    using Residuals = std::map<std::pair<std::size_t, std::size_t>, std::vector<float>>;
    Residuals kept;  // residuals of the tiles that this rank owns, by group
    struct Step {
        bool is_warmup;
        bool is_accepted;
    };
    for (const Step step : {Step{true, true}, Step{false, true}, Step{false, false},
                            Step{false, true}, Step{false, true}}) {
        const codec::Codec& used = step.is_warmup ? *dense : *codec;
        scatter.begin_step({.codec = &used, .random_key = 3, .feeds_back = !step.is_warmup});
        Residuals left = kept;
        for (const shard::TileRange round : kRounds) {
            scatter.scatter(
                round, gradient_of_round(world.rank(), round),
                [&](std::size_t tile, std::span<const std::span<const std::byte>> payloads) {
                    for (std::size_t g = 0; g < payloads.size(); ++g) {
                        std::vector<float>& residual = left[{tile, g}];
                        residual.resize(kTileElems, 0.0F);
                        const auto wanted = reference_payload(
                            groups.ranks_of[g], static_cast<int>(g), tile, {used, 3}, Dtype::bf16,
                            step.is_warmup ? nullptr : &residual);
                        EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), payloads[g].begin(),
                                               payloads[g].end()))
                            << "tile " << tile << " group " << g;
                    }
                });
        }
        if (step.is_accepted) {
            scatter.accept();
            kept = left;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Codecs, Feedback, testing::Values("topk", "q4"),
                         [](const auto& one) { return one.param; });

}  // namespace
}  // namespace nearstep::exchange
