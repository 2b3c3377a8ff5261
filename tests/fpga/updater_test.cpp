// Compares the FPGA's updater with the CPU's engines, bit for bit.
#include "fpga/kernel/updater.hpp"

#include "base/digest.hpp"
#include "codec/delta.hpp"
#include "csd/optimizer.hpp"
#include "csd/state_format.hpp"
#include "fpga/same_bits.hpp"
#include "fpga/sample_subgroups.hpp"
#include "fpga/subgroup.hpp"
#include "support/test.hpp"
#include "support/update_values.hpp"

#include <bit>

namespace nearstep::fpga {
namespace {

constexpr std::array kOptimizers = {Optimizer::adamw, Optimizer::adam, Optimizer::sgd,
                                    Optimizer::adagrad, Optimizer::lion};

// --- Optimizers and formats ----------------------------------------------------------------------

using Case = std::tuple<Optimizer, StateFormat>;

class UpdaterOf : public testing::TestWithParam<Case> {
protected:
    static UpdateScalars scalars() { return sane_scalars(std::get<0>(GetParam())); }
    static StateFormat format() { return std::get<1>(GetParam()); }
    // Every optimizer and every format meets each of them.
    static Dtype dtype() { return dtype_in_turn(std::get<0>(GetParam()), format()); }
};

TEST_P(UpdaterOf, GivesTheBitsOfTheEngines) {
    Subgroup start = random_subgroup({.format = format(),
                                      .codec = {.name = "dense", .dtype = dtype()},
                                      .tiles = 2,
                                      .parameter_dtype = dtype()},
                                     1);
    expect_bits_of_engines(start, scalars(), 2);
}

TEST_P(UpdaterOf, AgreesOnDenormalsInfinitiesAndNan) {
    UpdateScalars no_epsilon = scalars();
    no_epsilon.epsilon = 0;
    Samples samples = edge_samples();
    Subgroup start({.format = format(),
                    .codec = {.name = "dense", .dtype = dtype()},
                    .tiles = kEdgeTiles,
                    .parameter_dtype = dtype()});
    start.set_state(samples.state());
    start.set_gradient(0, samples.gradient);
    for (const UpdateScalars& one : {scalars(), no_epsilon}) {
        const Subgroup seen = expect_values_of_engine(start, csd::best_engine(), one);
        EXPECT_GT(seen.totals().gradients_not_finite, 0U);
        EXPECT_GT(seen.totals().masters_not_finite, 0U);
    }
}

// Bytes that no engine wrote: codes without a scale, and scales that are NaN.
TEST_P(UpdaterOf, LeavesAMomentThatTheOptimizerDoesNotUse) {
    Subgroup subgroup = random_subgroup({.format = format(), .tiles = 3}, 2);
    const auto extents_of_moments = [&](std::size_t tile) {
        const csd::StatePointers at =
            csd::state_of_tile(format(), subgroup.payload(), subgroup.settings().tiles, tile);
        std::vector<std::byte*> moments;
        if (!uses_moment1(scalars().optimizer)) {
            moments = {static_cast<std::byte*>(at.moment1),
                       reinterpret_cast<std::byte*>(at.scale1)};
        }
        if (!uses_moment2(scalars().optimizer)) {
            moments = {static_cast<std::byte*>(at.moment2),
                       reinterpret_cast<std::byte*>(at.scale2)};
        }
        return moments;
    };
    for (std::size_t tile = 0; tile < 3; ++tile) {
        for (std::byte* moment : extents_of_moments(tile)) {
            if (moment != nullptr) {
                std::fill_n(moment, 1024, static_cast<std::byte>(0xC7 + tile));
            }
        }
    }
    expect_bits_of_engines(subgroup, scalars());
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
    return std::string(csd::name_of(std::get<0>(info.param))) + "_" +
           csd::name_of(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(All, UpdaterOf,
                         testing::Combine(testing::ValuesIn(kOptimizers),
                                          testing::ValuesIn(kStateFormats)),
                         case_name);

// --- Codecs --------------------------------------------------------------------------------------

struct Coding {
    codec::CodecSettings codec = {};
    std::string label;
};

std::vector<Coding> codings() {
    std::vector<Coding> all;
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
        all.push_back({{.name = "dense", .dtype = dtype}, "dense_" + std::string(name_of(dtype))});
    }
    // 1, 2, 32, 33, 656, 8193 and all elements: values begin at a word, within one, or in the last.
    Dtype dtype = Dtype::bf16;
    for (const double keep : {1.0, 2.0, 32.0, 33.0, 656.0, 8193.0, 65536.0}) {
        all.push_back({{.name = "topk", .keep = keep / 65536, .dtype = dtype},
                       "topk_" + std::to_string(static_cast<int>(keep)) + "_" + name_of(dtype)});
        dtype = dtype == Dtype::bf16 ? Dtype::fp16 : Dtype::bf16;
    }
    for (const char* name : {"q8", "q4"}) {
        all.push_back({{.name = name}, name});
        all.push_back(
            {{.name = name, .rounding = Rounding::stochastic}, std::string(name) + "_stochastic"});
    }
    return all;
}

class UpdaterFed : public testing::TestWithParam<Coding> {};

TEST_P(UpdaterFed, SumsPayloadsAsTheHostDoes) {
    for (const std::size_t sources : {1, 3}) {
        SCOPED_TRACE(sources);
        Subgroup start = random_subgroup(
            {.codec = GetParam().codec, .tiles = 2, .sources = sources}, 3 + sources);
        expect_bits_of_engines(start, sane_scalars(Optimizer::adamw));
    }
}

TEST_P(UpdaterFed, AgreesOnPayloadsOfEdges) {
    Samples samples = edge_samples();
    Subgroup start({.codec = GetParam().codec, .tiles = kEdgeTiles, .sources = 2});
    std::ranges::fill(samples.moment1, 0.5F);
    std::ranges::fill(samples.moment2, 0.25F);
    start.set_state(samples.state());
    for (std::size_t source = 0; source < 2; ++source) {
        // Sums of infinities of both signs, zeros of both signs, and denormals.
        for (std::size_t i = 0; i < samples.gradient.size(); ++i) {
            samples.gradient[i] = kEdges.at((i / 64 / (source == 0 ? 1 : 14)) % 14);
        }
        start.set_gradient(source, samples.gradient);
    }
    expect_values_of_engine(start, csd::best_engine(), sane_scalars(Optimizer::sgd));
}

// The last tile of a vector has few parameters, then padding, which stays zero.
TEST_P(UpdaterFed, LeavesPaddingOfTheLastTile) {
    Subgroup start({.codec = GetParam().codec, .tiles = 2, .sources = 2});
    Samples samples = random_samples(9, start.elems());
    const std::size_t used = kTile + 12345;
    for (auto* array : {&samples.gradient, &samples.master, &samples.moment1, &samples.moment2}) {
        std::fill(array->begin() + static_cast<std::ptrdiff_t>(used), array->end(), 0.0F);
    }
    start.set_state(samples.state());
    start.set_gradient(0, samples.gradient);
    start.set_gradient(1, samples.gradient);
    expect_bits_of_engines(start, sane_scalars(Optimizer::adamw));
    start.run_kernel(sane_scalars(Optimizer::adamw));
    const auto arrays = start.widened();
    for (const auto& array : arrays) {
        EXPECT_TRUE(std::all_of(array.begin() + static_cast<std::ptrdiff_t>(used), array.end(),
                                [](float value) { return bits_of(value) == 0; }));
    }
}

INSTANTIATE_TEST_SUITE_P(Codecs, UpdaterFed, testing::ValuesIn(codings()),
                         [](const auto& one) { return one.param.label; });

// --- Deltas --------------------------------------------------------------------------------------

// Each tile has its own share and size of changes, so that each form is the smallest for some tile.
Samples moving_samples(std::size_t tiles) {
    Samples samples = random_samples(4, tiles * kTile);
    for (std::size_t i = 0; i < samples.master.size(); ++i) {
        const std::size_t tile = i / kTile;
        const double share = std::array{0.0, 0.002, 0.06, 0.3, 0.45, 1.0, 0.9, 1.0}.at(tile % 8);
        const double size = std::array{0.0, 9.0, 1.0, 1.0, 9.0, 1.0, 60.0, 400.0}.at(tile % 8);
        const bool is_moved = random_uniform(5, 1, i) < share;
        // One unit of bf16 is 2^-7 of the magnitude's power of two.
        const double unit = std::exp2(std::floor(std::log2(std::abs(samples.master[i]))) - 7);
        const double direction = random_uniform(5, 2, i) < 0.5 ? -1 : 1;
        samples.master[i] = from_bf16(to_bf16(samples.master[i]));
        samples.gradient[i] = static_cast<float>(is_moved ? direction * size * unit : 0);
    }
    return samples;
}

UpdateScalars plain_descent() {
    UpdateScalars scalars;
    scalars.optimizer = Optimizer::sgd;
    scalars.beta1 = 0;
    scalars.step_size = 1;
    return scalars;
}

class DeltasOf : public testing::TestWithParam<StateFormat> {};

TEST_P(DeltasOf, AreTheMessageOfTheHost) {
    for (const Dtype dtype : {Dtype::bf16, Dtype::fp16}) {
        for (const std::size_t tiles : {1, 2, 8}) {
            Subgroup start({.format = GetParam(),
                            .codec = {.name = "dense", .dtype = Dtype::fp32},
                            .tiles = tiles,
                            .parameter_dtype = dtype,
                            .delivery = ParameterDelivery::deltas,
                            .first_tile = (1ULL << 40U) + 3});
            Samples samples = moving_samples(tiles);
            start.set_state(samples.state());
            start.set_gradient(0, samples.gradient);
            expect_bits_of_engines(start, plain_descent());
        }
    }
}

// Stored masters have any bits, including NaN payloads. The old parameters equal those sent.
TEST_P(DeltasOf, CompareWithWhatWasSentWhateverItsBits) {
    Subgroup start = random_subgroup({.format = GetParam(),
                                      .codec = {.name = "dense"},
                                      .tiles = 2,
                                      .delivery = ParameterDelivery::deltas},
                                     6);
    for (std::size_t i = 0; i < 2 * kTile * 2; ++i) {
        start.payload()[i] = static_cast<std::byte>(random_bits(8, 0, i));
    }
    UpdateScalars still = plain_descent();
    still.step_size = 0;
    Subgroup expected = start;
    Subgroup seen = start;
    const std::size_t bytes = expected.run_engine(csd::engines().front(), still);
    seen.run_kernel(still);
    EXPECT_EQ(seen.totals().parameter_bytes, bytes);
    EXPECT_TRUE(
        std::ranges::equal(seen.parameters().first(bytes), expected.parameters().first(bytes)));
}

INSTANTIATE_TEST_SUITE_P(Formats, DeltasOf, testing::ValuesIn(kStateFormats),
                         [](const auto& one) { return csd::name_of(one.param); });

TEST(UpdaterDeltas, TakeEveryForm) {
    Subgroup subgroup({.codec = {.name = "dense", .dtype = Dtype::fp32},
                       .tiles = 8,
                       .delivery = ParameterDelivery::deltas});
    Samples samples = moving_samples(8);
    subgroup.set_state(samples.state());
    subgroup.set_gradient(0, samples.gradient);
    subgroup.run_kernel(plain_descent());
    std::set<std::uint32_t> forms;
    codec::DeltaTally tally;
    codec::DeltaReader(subgroup.parameters(), {5, 13}).add_to(tally);
    std::uint64_t reported = 0;
    for (std::size_t tile = 0; tile < 8; ++tile) {
        forms.insert(subgroup.tile_report(tile).form);
        reported += subgroup.tile_report(tile).payload_bytes + 16;
    }
    EXPECT_EQ(forms.size(), codec::kDeltaForms);
    EXPECT_EQ(reported, std::accumulate(tally.bytes.begin(), tally.bytes.end(), 0ULL));
}

// --- The report ----------------------------------------------------------------------------------

TEST(UpdaterReport, MeasuresTheGradientAndDigestsTheParameters) {
    Subgroup subgroup = random_subgroup({.codec = {.name = "q4"}, .tiles = 3, .sources = 2}, 11);
    std::vector<std::vector<float>> gradients;
    for (std::size_t tile = 0; tile < 3; ++tile) {
        gradients.push_back(subgroup.gradient_of(tile));
    }
    subgroup.run_kernel(sane_scalars(Optimizer::adamw));
    double all = 0;
    for (std::size_t tile = 0; tile < 3; ++tile) {
        std::array<double, 64> sums{};
        for (std::size_t i = 0; i < kTile; ++i) {
            const double value = gradients[tile][i];
            sums.at(i % 64) += value * value;
        }
        const double squares = std::accumulate(sums.begin(), sums.end(), 0.0);
        all += squares;
        const UpdaterTile report = subgroup.tile_report(tile);
        EXPECT_GT(squares, 0);
        EXPECT_EQ(std::bit_cast<double>(report.gradient_squares), squares);
        EXPECT_EQ(report.parameter_digest,
                  xxh3(subgroup.parameters().subspan(tile * kTile * 2, kTile * 2)));
        EXPECT_EQ(report.payload_bytes, kTile * 2);
        EXPECT_EQ(report.gradients_not_finite, 0U);
    }
    EXPECT_EQ(std::bit_cast<double>(subgroup.totals().gradient_squares), all);
    EXPECT_EQ(subgroup.totals().tiles, 3U);
}

TEST(UpdaterReport, CountsWhatIsNotFinite) {
    for (const StateFormat format : kStateFormats) {
        Subgroup subgroup({.format = format, .tiles = 2});
        Samples samples = random_samples(12, subgroup.elems());
        samples.gradient[3] = std::numeric_limits<float>::infinity();
        samples.gradient[kTile - 1] = std::numeric_limits<float>::quiet_NaN();
        samples.gradient[2 * kTile - 1] = -std::numeric_limits<float>::infinity();
        samples.master[kTile + 6] = std::numeric_limits<float>::infinity();
        subgroup.set_state(samples.state());
        subgroup.set_gradient(0, samples.gradient);
        subgroup.run_kernel(sane_scalars(Optimizer::sgd));
        EXPECT_EQ(subgroup.tile_report(0).gradients_not_finite, 2U);
        EXPECT_EQ(subgroup.tile_report(1).gradients_not_finite, 1U);
        EXPECT_EQ(subgroup.totals().gradients_not_finite, 3U);
        // An infinity in a block's codes reaches its masters in the next step.
        EXPECT_EQ(subgroup.tile_report(0).masters_not_finite, 2U) << csd::name_of(format);
        EXPECT_EQ(subgroup.tile_report(1).masters_not_finite, 2U) << csd::name_of(format);
    }
}

TEST(UpdaterReport, RefusesWhatIsNotThere) {
    Subgroup start = random_subgroup({.tiles = 2}, 13);
    Subgroup subgroup = start;
    const UpdateScalars sane = sane_scalars(Optimizer::adamw);
    const auto refuses = [&](const UpdateScalars& scalars, const auto& change) {
        Subgroup::Launch launch = subgroup.launch();
        change(launch);
        subgroup.run_kernel(scalars, launch);
        EXPECT_EQ(subgroup.totals().status,
                  static_cast<std::uint32_t>(UpdaterStatus::bad_argument));
        EXPECT_TRUE(std::ranges::equal(subgroup.extent(), start.extent()));
        EXPECT_FALSE(subgroup.has_report());
    };
    refuses(sane, [](auto& launch) { launch.tiles = 0; });
    refuses(sane, [](auto& launch) { launch.tiles = kMostSubgroupTiles + 1; });
    refuses(sane, [](auto& launch) { launch.sources = 0; });
    refuses(sane, [](auto& launch) { launch.sources = kMostSources + 1; });
    refuses(sane, [](auto& launch) { launch.codec = GradientCodec{kGradientCodecs}; });
    // Top-k with no elements, and with more than a tile has.
    refuses(sane, [](auto& launch) { launch.codec = GradientCodec::topk_bf16; });
    refuses(sane, [](auto& launch) {
        launch.codec = GradientCodec::topk_bf16;
        launch.kept = kTile + 1;
        launch.payload_stride = 1U << 20U;
    });
    // Offsets within a word, and overlapping payloads.
    refuses(sane, [](auto& launch) { launch.state_offset += 4; });
    refuses(sane, [](auto& launch) { launch.payload_offset += 32; });
    refuses(sane, [](auto& launch) { launch.payload_stride += 8; });
    refuses(sane, [](auto& launch) { launch.payload_stride -= 64; });
    refuses(sane, [](auto& launch) { launch.delivery = ParameterDelivery{2}; });
    refuses(sane, [](auto& launch) { launch.parameter_dtype = Dtype{3}; });
    refuses(sane, [](auto& launch) {
        launch.delivery = ParameterDelivery::deltas;
        launch.parameter_dtype = Dtype::fp32;
    });
    UpdateScalars unknown = sane;
    unknown.optimizer = Optimizer{5};
    refuses(unknown, [](auto&) {});
    subgroup.run_kernel(sane);
    EXPECT_EQ(subgroup.totals().status, static_cast<std::uint32_t>(UpdaterStatus::done));
}

}  // namespace
}  // namespace nearstep::fpga
