// The input of devices equals the definition in docs/formats/gradient-payload.md, computed in one
// process, for every codec, scatter, number of hosts, number of state copies, and with or without
// sums by the owner.
#include "base/random.hpp"
#include "mpi/exchange/gradient_scatter.hpp"
#include "mpi/exchange/owner_sum.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace nearstep::exchange {
namespace {

using shard::kTileElems;
using trace::Counter;

constexpr std::size_t kReferenceTiles = 5;
constexpr std::uint64_t kRandomKey = 99;
const std::vector<shard::TileRange> kReferenceRounds = {{3, kReferenceTiles}, {0, 3}};

// The gradient of a rank, cheap and different everywhere.
float reference_gradient(int rank, std::size_t element) {
    const std::uint64_t bits = (element + 1) * 0x9E3779B97F4A7C15U +
                               static_cast<std::uint64_t>(rank) * 0xD1B54A32D192ED03U;
    const auto fraction = static_cast<float>((bits ^ bits >> 29U) >> 40U) / (1U << 24U) - 0.5F;
    return fraction * fraction * fraction;
}

// The topology that MPI would find with hosts filled one after another.
mpi::Topology on_hosts(int ranks, int hosts) {
    std::vector<int> host;
    for (int rank = 0; rank < ranks; ++rank) {
        host.push_back(rank * hosts / ranks);
    }
    return mpi::group_by(host);
}

// One copy of the state per list of ranks; some ranks have two devices.
shard::Ownership copies_of(const std::vector<std::vector<int>>& lists) {
    std::vector<shard::Replica> copies;
    for (const std::vector<int>& ranks : lists) {
        std::vector<int> devices;
        for (const int rank : ranks) {
            devices.push_back(1 + rank % 2);
        }
        const shard::DeviceMap map(devices);
        copies.push_back(
            {.ranks = ranks,
             .devices = map,
             .partition = shard::Partition(
                 {.parameters = kReferenceTiles * kTileElems - 77,
                  .speeds = std::vector<double>(static_cast<std::size_t>(map.devices()), 1.0),
                  .subgroup_tiles = 2})});
    }
    return shard::Ownership(std::move(copies));
}

// Computes element by element, without code from the exchange.
class Reference {
public:
    // Sums are computed once for all codecs.
    Reference(const mpi::Topology& groups, std::size_t tile) : tile_(tile) {
        for (const std::vector<int>& ranks : groups.ranks_of) {
            std::vector<float>& sum = sums_.emplace_back(kTileElems, 0.0F);
            for (std::size_t i = 0; i < kTileElems; ++i) {
                for (std::size_t r = 0; r < ranks.size(); ++r) {
                    const float value =
                        rounded(reference_gradient(ranks[r], tile * kTileElems + i));
                    sum[i] = r == 0 ? value : sum[i] + value;
                }
            }
        }
    }

    using Payloads = std::vector<std::vector<std::byte>>;

    Payloads payloads(const codec::Codec& codec) const {
        Payloads out;
        for (std::size_t group = 0; group < sums_.size(); ++group) {
            out.push_back(encoded(codec, sums_[group], group));
        }
        return out;
    }

    // Sum of the decoded payloads in group order.
    Payloads sum(const codec::Codec& sent, const codec::Codec& handed) const {
        std::vector<float> total(kTileElems, 0.0F);
        for (const std::vector<std::byte>& payload : payloads(sent)) {
            std::vector<float> decoded(kTileElems, 0.0F);
            sent.decode_add(payload, 0, decoded);
            for (std::size_t i = 0; i < kTileElems; ++i) {
                total[i] += decoded[i];
            }
        }
        if (handed.plain_dtype()) {
            Payloads dense(1, std::vector<std::byte>(2 * kTileElems));
            for (std::size_t i = 0; i < kTileElems; ++i) {
                convert_from_fp32(&total[i], Dtype::bf16, &dense.front()[2 * i], 1);
            }
            return dense;
        }
        return {encoded(handed, total, 0)};
    }

private:
    static float rounded(float value) {
        std::uint16_t bits = 0;
        convert_from_fp32(&value, Dtype::bf16, &bits, 1);
        convert_to_fp32(Dtype::bf16, &bits, &value, 1);
        return value;
    }

    std::vector<std::byte> encoded(const codec::Codec& codec, const std::vector<float>& values,
                                   std::size_t group) const {
        std::vector<std::byte> payload(codec.payload_bytes());
        codec.encode(values, payload, arith::tile_key(random_bits(kRandomKey, 0, group), tile_));
        return payload;
    }

    std::size_t tile_;
    std::vector<std::vector<float>> sums_;
};

struct ReferenceCase {
    int hosts;
    bool is_flat;
    std::string copies;  // of the state: "one", "per host", "per rank"
};

class ScatterReference : public testing::TestWithParam<ReferenceCase> {
protected:
    ScatterReference()
        : world_(mpi::Communicator::world(std::chrono::seconds(100))),
          nodes_(on_hosts(world_.size(), std::min(GetParam().hosts, world_.size()))),
          groups_(GetParam().is_flat ? mpi::each_rank_alone(world_.size()) : nodes_),
          owners_(copies_of(lists())),
          dense_(codec::make_codec({.name = "dense"})) {
        for (std::size_t tile = 0; tile < kReferenceTiles; ++tile) {
            if (owners_.owns(world_.rank(), tile)) {
                references_.emplace(tile, Reference(groups_, tile));
            }
        }
    }

    std::vector<std::vector<int>> lists() const {
        if (GetParam().copies == "one") {
            std::vector<int> all(static_cast<std::size_t>(world_.size()));
            std::iota(all.begin(), all.end(), 0);
            return {all};
        }
        return GetParam().copies == "per host" ? nodes_.ranks_of
                                               : mpi::each_rank_alone(world_.size()).ranks_of;
    }

    // Scatters once and compares what is handed over with the reference. `handed` null: payloads as
    // received.
    void check(GradientScatter& scatter, const codec::Codec& sent, const codec::Codec* handed) {
        scatter.begin_step({.codec = &sent, .random_key = kRandomKey});
        OwnerSum sum;
        sum.begin_step(sent, handed, kRandomKey);
        std::map<std::size_t, int> seen;
        for (const shard::TileRange round : kReferenceRounds) {
            std::vector<float> gradient(round.size() * kTileElems);
            for (std::size_t i = 0; i < gradient.size(); ++i) {
                gradient[i] = reference_gradient(world_.rank(), round.begin * kTileElems + i);
            }
            scatter.scatter(round, gradient, [&](std::size_t tile, auto payloads) {
                ++seen[tile];
                ASSERT_TRUE(references_.contains(tile)) << "tile " << tile << " is not this rank's";
                constexpr std::size_t kSquared = kTileElems / 2 + 5;  // ends within a piece
                const Handed given = sum.take(tile, payloads, kSquared);
                const Reference& reference = references_.at(tile);
                const Reference::Payloads wanted =
                    handed == nullptr ? reference.payloads(sent) : reference.sum(sent, *handed);
                ASSERT_EQ(given.payloads.size(), wanted.size());
                std::vector<float> decoded(kTileElems, 0.0F);
                for (std::size_t i = 0; i < wanted.size(); ++i) {
                    EXPECT_TRUE(std::ranges::equal(given.payloads[i], wanted[i]))
                        << "tile " << tile << " payload " << i;
                    (handed == nullptr ? sent : *handed).decode_add(wanted[i], 0, decoded);
                }
                EXPECT_TRUE(std::ranges::equal(given.sum, decoded)) << "tile " << tile;
                std::array<double, codec::kSquareSums> squares{};
                for (std::size_t i = 0; i < kSquared; ++i) {
                    squares.at(i % squares.size()) += std::pow(static_cast<double>(decoded[i]), 2);
                }
                EXPECT_EQ(given.squares, std::accumulate(squares.begin(), squares.end(), 0.0));
            });
        }
        EXPECT_EQ(seen.size(), references_.size());
        for (const auto& [tile, times] : seen) {
            EXPECT_EQ(times, 1) << "tile " << tile;
        }
    }

    // A payload goes once from its group to each other host with an owner.
    std::size_t network_bytes(const codec::Codec& sent) const {
        std::size_t payloads = 0;
        for (std::size_t tile = 0; tile < kReferenceTiles; ++tile) {
            for (const std::vector<int>& host : nodes_.ranks_of) {
                if (owners_.owners_among(host, tile).empty()) {
                    continue;
                }
                for (const std::vector<int>& group : groups_.ranks_of) {
                    payloads += std::find(host.begin(), host.end(), group.front()) == host.end();
                }
            }
        }
        return payloads * sent.payload_bytes();
    }

    mpi::Communicator world_;
    mpi::Topology nodes_;
    mpi::Topology groups_;
    shard::Ownership owners_;
    std::unique_ptr<codec::Codec> dense_;
    std::map<std::size_t, Reference> references_;  // of the tiles that this rank owns
};

TEST_P(ScatterReference, EqualsWhatDevicesAreHandedWithEveryCodecRawDenseAndSummed) {
    for (const std::string& name : codec::codec_names()) {
        for (const auto rounding : {arith::Rounding::nearest, arith::Rounding::stochastic}) {
            if (rounding == arith::Rounding::stochastic && name != "q4") {
                continue;
            }
            SCOPED_TRACE(name);
            const auto codec =
                codec::make_codec({.name = name, .keep = 0.01, .rounding = rounding});
            trace::Traffic traffic;
            GradientScatter scatter(world_,
                                    {.owners = &owners_,
                                     .codec = codec.get(),
                                     .most_payload_bytes = dense_->payload_bytes(),
                                     .groups = groups_,
                                     .nodes = nodes_},
                                    kReferenceRounds, traffic);
            check(scatter, *codec, nullptr);
            auto sent = traffic.snapshot();
            world_.sum(std::span(sent.bytes));
            EXPECT_EQ(sent[Counter::network_gradients], network_bytes(*codec));
            check(scatter, *codec, dense_.get());  // exchange.densify
            check(scatter, *dense_, codec.get());  // placement.gradients = "global"
        }
    }
}

// As if GPUs had summed and encoded: the same payloads are handed over and the same bytes counted.
TEST_P(ScatterReference, IsTheSameWithPayloadsThatWereMadeElsewhere) {
    const auto codec = codec::make_codec({.name = "q4", .rounding = arith::Rounding::stochastic});
    const auto settings = [&] {
        return ScatterSettings{
            .owners = &owners_, .codec = codec.get(), .groups = groups_, .nodes = nodes_};
    };
    trace::Traffic on_host;
    GradientScatter scatter(world_, settings(), kReferenceRounds, on_host);
    check(scatter, *codec, nullptr);

    trace::Traffic elsewhere;
    GradientScatter taker(world_, settings(), kReferenceRounds, elsewhere);
    taker.begin_step({.codec = codec.get(), .random_key = kRandomKey});
    const auto group = groups_.group_of[static_cast<std::size_t>(world_.rank())];
    std::vector<std::byte> payload;
    std::size_t seen = 0;
    for (const shard::TileRange round : kReferenceRounds) {
        taker.scatter_payloads(
            round,
            [&](std::size_t tile) {
                EXPECT_EQ(taker.slicer(group, tile), world_.rank());
                payload =
                    Reference(groups_, tile).payloads(*codec)[static_cast<std::size_t>(group)];
                return std::span<const std::byte>(payload);
            },
            [&](std::size_t tile, auto payloads) {
                ++seen;
                const Reference::Payloads wanted = references_.at(tile).payloads(*codec);
                ASSERT_EQ(payloads.size(), wanted.size());
                for (std::size_t i = 0; i < wanted.size(); ++i) {
                    EXPECT_TRUE(std::ranges::equal(payloads[i], wanted[i])) << "tile " << tile;
                }
            });
    }
    EXPECT_EQ(seen, references_.size());
    EXPECT_EQ(elsewhere.snapshot().bytes, on_host.snapshot().bytes);
}

std::vector<ReferenceCase> all_reference_cases() {
    std::vector<ReferenceCase> cases;
    for (const int hosts : {1, 2, 3, 4}) {
        for (const bool is_flat : {false, true}) {
            cases.push_back({hosts, is_flat, "one"});
        }
    }
    for (const char* copies : {"per host", "per rank"}) {
        cases.push_back({2, false, copies});
        cases.push_back({3, true, copies});
    }
    return cases;
}

INSTANTIATE_TEST_SUITE_P(Layouts, ScatterReference, testing::ValuesIn(all_reference_cases()),
                         [](const auto& one) {
                             std::string name = std::to_string(one.param.hosts) + "_hosts_" +
                                                (one.param.is_flat ? "flat" : "hierarchical") +
                                                "_copy_" + one.param.copies;
                             std::replace(name.begin(), name.end(), ' ', '_');
                             return name;
                         });

}  // namespace
}  // namespace nearstep::exchange
