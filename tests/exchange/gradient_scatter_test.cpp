// The input of devices equals the definition in docs/formats/gradient-payload.md, computed in one
// process, for every codec, scatter, number of hosts, number of state copies, with or without sums
// by the owner, and with error feedback.
#include "mpi/exchange/gradient_scatter.hpp"

#include "base/executor.hpp"
#include "mpi/exchange/owner_sum.hpp"
#include "support/test.hpp"

namespace nearstep::exchange {
namespace {

using shard::kTileElems;
using trace::Counter;

constexpr std::size_t kReferenceTiles = 5;
constexpr std::uint64_t kRandomKey = 99;
const std::vector<shard::TileRange> kReferenceRounds = {{3, kReferenceTiles}, {2, 3}, {0, 2}};

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

std::vector<float> gradient_of_round(int rank, shard::TileRange round) {
    std::vector<float> gradient(round.size() * kTileElems);
    for (std::size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = reference_gradient(rank, round.begin * kTileElems + i);
    }
    return gradient;
}

TileReader gradient_of(int rank) {
    return [rank](std::size_t tile, std::span<float> values) {
        std::ranges::copy(gradient_of_round(rank, {tile, tile + 1}), values.begin());
    };
}

void add(std::vector<float>& sum, const std::vector<float>& values) {
    std::ranges::transform(sum, values, sum.begin(), std::plus<>());
}

std::vector<float> decoded(const codec::Codec& codec, std::span<const std::byte> payload) {
    std::vector<float> values(kTileElems, 0.0F);
    codec.decode_add(payload, 0, values);
    return values;
}

// Computes without code from the exchange.
class Reference {
public:
    using Payloads = std::vector<std::vector<std::byte>>;

    // Sums are computed once for all codecs.
    Reference(const mpi::Topology& groups, std::size_t tile, Dtype dtype = Dtype::bf16)
        : tile_(tile) {
        for (const std::vector<int>& ranks : groups.ranks_of) {
            std::vector<float>& sum = sums_.emplace_back();
            for (const int rank : ranks) {
                std::vector<float> values = gradient_of_round(rank, {tile, tile + 1});
                std::vector<std::byte> stored(kTileElems * sizeof(float));
                convert_from_fp32(values.data(), dtype, stored.data(), kTileElems);
                convert_to_fp32(dtype, stored.data(), values.data(), kTileElems);
                if (sum.empty()) {
                    sum = values;
                } else {
                    add(sum, values);
                }
            }
        }
    }

    Payloads payloads(const codec::Codec& codec) const {
        Payloads out;
        for (std::size_t group = 0; group < sums_.size(); ++group) {
            out.push_back(encoded(codec, sums_[group], group));
        }
        return out;
    }

    // The group's payload with error feedback. `residual`: what the last step lost; receives what
    // this one loses.
    std::vector<std::byte> payload_fed_back(const codec::Codec& codec, std::size_t group,
                                            std::vector<float>& residual) const {
        residual.resize(kTileElems, 0.0F);
        add(residual, sums_[group]);
        const std::vector<std::byte> payload = encoded(codec, residual, group);
        std::ranges::transform(residual, decoded(codec, payload), residual.begin(), std::minus<>());
        return payload;
    }

    // Sum of the decoded payloads in group order.
    Payloads sum(const codec::Codec& sent, const codec::Codec& sum_codec) const {
        std::vector<float> total(kTileElems, 0.0F);
        for (const std::vector<std::byte>& payload : payloads(sent)) {
            add(total, decoded(sent, payload));
        }
        if (sum_codec.plain_dtype()) {
            Payloads dense(1, std::vector<std::byte>(2 * kTileElems));
            convert_from_fp32(total.data(), Dtype::bf16, dense.front().data(), kTileElems);
            return dense;
        }
        return {encoded(sum_codec, total, 0)};
    }

private:
    std::vector<std::byte> encoded(const codec::Codec& codec, const std::vector<float>& values,
                                   std::size_t group) const {
        std::vector<std::byte> payload(codec.payload_bytes());
        codec.encode(values, payload, arith::tile_key(random_bits(kRandomKey, 0, group), tile_));
        return payload;
    }

    std::size_t tile_;
    std::vector<std::vector<float>> sums_;
};

// Hosts, whether the scatter is flat, and copies of the state: "one", "per host", "per rank".
using ReferenceCase = std::tuple<int, bool, std::string>;

class ScatterReference : public testing::TestWithParam<ReferenceCase> {
protected:
    ScatterReference()
        : world_(mpi::Communicator::world(std::chrono::seconds(100))),
          nodes_(on_hosts(world_.size(), std::min(std::get<0>(GetParam()), world_.size()))),
          groups_(is_flat() ? mpi::each_rank_alone(world_.size()) : nodes_),
          owners_(copies_of(lists())),
          routes_(owners_, groups_, nodes_, world_.rank()),
          dense_(codec::make_codec({.name = "dense"})) {
        for (const shard::TileRange round : kReferenceRounds) {
            rounds_.push_back(routes_.of(round));
        }
        refer_to(Dtype::bf16);
    }

    void refer_to(Dtype dtype) {
        references_.clear();
        for (std::size_t tile = 0; tile < kReferenceTiles; ++tile) {
            if (owners_.owns(world_.rank(), tile)) {
                references_.emplace(tile, Reference(groups_, tile, dtype));
            }
        }
    }

    static bool is_flat() { return std::get<1>(GetParam()); }

    std::vector<std::vector<int>> lists() const {
        const std::string& copies = std::get<2>(GetParam());
        if (copies == "one") {
            std::vector<int> all(static_cast<std::size_t>(world_.size()));
            std::iota(all.begin(), all.end(), 0);
            return {all};
        }
        return copies == "per host" ? nodes_.ranks_of
                                    : mpi::each_rank_alone(world_.size()).ranks_of;
    }

    // Scatters once and compares what devices get with the reference. `sum_codec` null: payloads as
    // received.
    void check(GradientScatter& scatter, const codec::Codec& sent, const codec::Codec* sum_codec) {
        scatter.begin_step({.codec = &sent, .random_key = kRandomKey});
        OwnerSum sum;
        sum.begin_step(sent, sum_codec, source_key(kRandomKey, 0));
        std::map<std::size_t, int> seen;
        for (const Route& round : rounds_) {
            for (const auto& [tile, payloads] :
                 scatter.scatter(round, gradient_of(world_.rank()))) {
                ++seen[tile];
                ASSERT_TRUE(references_.contains(tile)) << "tile " << tile << " is not this rank's";
                constexpr std::size_t kSquared = kTileElems / 2 + 5;  // ends within a piece
                const DevicePayloads given = sum.take(tile, payloads, kSquared);
                const Reference& reference = references_.at(tile);
                const Reference::Payloads wanted = sum_codec == nullptr
                                                       ? reference.payloads(sent)
                                                       : reference.sum(sent, *sum_codec);
                expect_equal(given.payloads, wanted, tile);
                std::vector<float> total(kTileElems, 0.0F);
                for (const std::vector<std::byte>& payload : wanted) {
                    (sum_codec == nullptr ? sent : *sum_codec).decode_add(payload, 0, total);
                }
                EXPECT_TRUE(std::ranges::equal(given.sum, total)) << "tile " << tile;
                std::array<double, codec::kSquareSums> squares{};
                for (std::size_t i = 0; i < kSquared; ++i) {
                    squares.at(i % squares.size()) += std::pow(static_cast<double>(total[i]), 2);
                }
                EXPECT_EQ(given.squares, std::accumulate(squares.begin(), squares.end(), 0.0));
            }
        }
        EXPECT_EQ(seen.size(), references_.size());
        for (const auto& [tile, times] : seen) {
            EXPECT_EQ(times, 1) << "tile " << tile;
        }
    }

    static void expect_equal(std::span<const std::span<const std::byte>> found,
                             const Reference::Payloads& wanted, std::size_t tile) {
        EXPECT_TRUE(
            std::equal(found.begin(), found.end(), wanted.begin(), wanted.end(),
                       [](const auto& a, const auto& b) { return std::ranges::equal(a, b); }))
            << "tile " << tile;
    }

    // Compares what a call of the scatter returned; returns the number of tiles.
    std::size_t expect_payloads(std::span<const TilePayloads> taken, const codec::Codec& codec) {
        for (const auto& [tile, payloads] : taken) {
            expect_equal(payloads, references_.at(tile).payloads(codec), tile);
        }
        return taken.size();
    }

    // Several threads encode.
    GradientScatter make_scatter(ScatterSettings settings, trace::Traffic& traffic) {
        settings.pool = &pool_;
        return {world_, routes_, settings, rounds_, traffic};
    }

    trace::TrafficSnapshot sent_by_all(const trace::Traffic& traffic) const {
        auto sent = traffic.snapshot();
        world_.sum(std::span(sent.bytes));
        return sent;
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
    Executor pool_{2};
    Routes routes_;
    std::vector<Route> rounds_;
    std::unique_ptr<codec::Codec> dense_;
    std::map<std::size_t, Reference> references_;  // of the tiles that this rank owns
};

TEST_P(ScatterReference, EqualsWhatDevicesAreHandedWithEveryCodecRawDenseAndSummed) {
    for (const std::string& name : codec::codec_names()) {
        SCOPED_TRACE(name);
        const auto rounding = name == "q4" ? arith::Rounding::stochastic : arith::Rounding::nearest;
        const auto codec = codec::make_codec({.name = name, .keep = 0.01, .rounding = rounding});
        trace::Traffic traffic;
        GradientScatter scatter = make_scatter(
            {.codec = codec.get(), .most_payload_bytes = dense_->payload_bytes()}, traffic);
        check(scatter, *codec, nullptr);
        const trace::TrafficSnapshot sent = sent_by_all(traffic);
        EXPECT_EQ(sent[Counter::network_gradients], network_bytes(*codec));
        if (!is_flat() && owners_.copies() == 1) {  // dense, by all but the slicer
            const auto others = static_cast<std::size_t>(world_.size() - nodes_.groups());
            EXPECT_EQ(sent[Counter::node_gradients],
                      others * kReferenceTiles * dense_->payload_bytes());
        }
        check(scatter, *codec, dense_.get());  // exchange.densify
        check(scatter, *dense_, codec.get());  // placement.gradients = "global"
    }
}

TEST_P(ScatterReference, TakesGradientsOfEveryFormat) {
    for (const Dtype dtype : {Dtype::fp32, Dtype::fp16}) {
        refer_to(dtype);
        const auto codec = codec::make_codec({.name = "topk", .keep = 0.01, .dtype = dtype});
        trace::Traffic traffic;
        GradientScatter scatter =
            make_scatter({.codec = codec.get(), .gradient_dtype = dtype}, traffic);
        check(scatter, *codec, nullptr);
    }
}

// Payloads that GPUs would have summed and encoded go to devices, and their bytes count, as the
// scatter's own. Every other group leaves it to the scatter.
TEST_P(ScatterReference, IsTheSameWithPayloadsThatWereMadeElsewhere) {
    const auto codec = codec::make_codec({.name = "q4", .rounding = arith::Rounding::stochastic});
    const auto group = static_cast<std::size_t>(routes_.group());
    trace::Traffic on_host;
    trace::Traffic elsewhere;
    trace::Traffic brought;
    GradientScatter scatter = make_scatter({.codec = codec.get()}, on_host);
    GradientScatter sending = make_scatter({.codec = codec.get()}, elsewhere);
    GradientScatter taking = make_scatter({.codec = codec.get()}, brought);
    check(scatter, *codec, nullptr);
    sending.begin_step({.codec = codec.get(), .random_key = kRandomKey});
    taking.begin_step({.codec = codec.get(), .random_key = kRandomKey});
    std::size_t sent = 0;
    std::size_t taken = 0;
    for (const Route& round : rounds_) {
        std::vector<std::byte> made;
        for (const std::size_t tile : round.sliced) {
            const auto payload = Reference(groups_, tile).payloads(*codec)[group];
            made.insert(made.end(), payload.begin(), payload.end());
        }
        sent += expect_payloads(group % 2 == 0 ? sending.scatter_payloads(round, made)
                                               : sending.scatter(round, gradient_of(world_.rank())),
                                *codec);
        if (owners_.copies() > 1) {
            EXPECT_THROW(taking.take_arrived(round, made), ContractError);
            continue;
        }
        std::vector<std::byte> received(round.places.size() * codec->payload_bytes());
        for (std::size_t i = 0; i < round.places.size(); ++i) {
            const auto sources = static_cast<std::size_t>(routes_.sources());
            const auto payloads = references_.at(round.owned[i / sources].tile).payloads(*codec);
            std::ranges::copy(payloads[i % sources],
                              received.begin() + static_cast<std::ptrdiff_t>(
                                                     round.places[i] * codec->payload_bytes()));
        }
        taken += expect_payloads(taking.take_arrived(round, received), *codec);
    }
    EXPECT_EQ(sent, references_.size());
    EXPECT_EQ(elsewhere.snapshot().bytes, on_host.snapshot().bytes);
    if (owners_.copies() == 1) {
        EXPECT_EQ(taken, references_.size());
        EXPECT_EQ(brought.snapshot().bytes, on_host.snapshot().bytes);
    }
}

// A dense warm-up step, then error feedback with one skipped step.
TEST_P(ScatterReference, FeedsBackWhatTheLastAcceptedStepLost) {
    for (const char* name : {"topk", "q4"}) {
        SCOPED_TRACE(name);
        const auto codec = codec::make_codec({.name = name, .keep = 0.01});
        trace::Traffic traffic;
        GradientScatter scatter = make_scatter({.codec = codec.get(),
                                                .most_payload_bytes = dense_->payload_bytes(),
                                                .has_residual = true},
                                               traffic);
        check(scatter, *dense_, nullptr);
        scatter.accept();
        using Residuals = std::map<std::pair<std::size_t, std::size_t>, std::vector<float>>;
        Residuals kept;  // of the tiles that this rank owns, by group
        for (const bool is_accepted : {true, false, true, true}) {
            scatter.begin_step(
                {.codec = codec.get(), .random_key = kRandomKey, .feeds_back = true});
            Residuals left = kept;
            for (const Route& round : rounds_) {
                for (const auto& [tile, payloads] :
                     scatter.scatter(round, gradient_of(world_.rank()))) {
                    Reference::Payloads wanted;
                    for (std::size_t group = 0; group < payloads.size(); ++group) {
                        wanted.push_back(references_.at(tile).payload_fed_back(
                            *codec, group, left[{tile, group}]));
                    }
                    expect_equal(payloads, wanted, tile);
                }
            }
            if (is_accepted) {
                scatter.accept();
                kept = left;
            }
        }
    }
}

using testing::Combine;
using testing::Values;
INSTANTIATE_TEST_SUITE_P(OneCopy, ScatterReference,
                         Combine(Values(1, 2, 3, 4), testing::Bool(), Values("one")));
INSTANTIATE_TEST_SUITE_P(Hierarchical, ScatterReference,
                         Combine(Values(2), Values(false), Values("per host", "per rank")));
INSTANTIATE_TEST_SUITE_P(Flat, ScatterReference,
                         Combine(Values(3), Values(true), Values("per host", "per rank")));

}  // namespace
}  // namespace nearstep::exchange
