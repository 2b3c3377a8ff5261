#include "fpga/model/updater_model.hpp"

#include "fpga/kernel/decode_gradient.hpp"
#include "fpga/kernel/encode_delta.hpp"
#include "fpga/model/trace.hpp"
#include "support/test.hpp"
#include "support/update_values.hpp"

namespace nearstep::fpga {
namespace {

// --- Networks worked out by hand -----------------------------------------------------------------

Process source_of(Fifo* out, std::uint64_t steps) {
    return {.name = "source", .steps = steps, .writes = {{out, always}}};
}

TEST(TokenNetwork, ASlowReaderBlocksItsWriter) {
    TokenNetwork network({});
    Fifo* fifo = network.add_fifo(2);
    network.add(source_of(fifo, 10));
    network.add(Process{
        .name = "sink", .steps = 10, .reads = {{fifo, always}}, .extra = [](auto) { return 2; }});
    // Three cycles per item, plus one until the first arrives.
    EXPECT_EQ(network.run(), 31U);
    EXPECT_EQ(network.processes()[0].activity.busy, 10U);
    EXPECT_EQ(network.processes()[1].activity.starved, 1U);
    EXPECT_GT(network.processes()[0].activity.blocked, 10U);
}

TEST(TokenNetwork, TellsADeadlock) {
    TokenNetwork network({});
    Fifo* first = network.add_fifo(4);
    Fifo* second = network.add_fifo(4);
    network.add(Process{.name = "writer",
                        .steps = 20,
                        .writes = {{first, [](std::uint64_t i) { return i < 10; }},
                                   {second, [](std::uint64_t i) { return i >= 10; }}}});
    network.add(Process{.name = "reader",
                        .steps = 20,
                        .reads = {{second, [](std::uint64_t i) { return i < 10; }},
                                  {first, [](std::uint64_t i) { return i >= 10; }}}});
    EXPECT_THAT(message_of<Error>([&] { network.run(); }),
                HasSubstr("writer at 4 of 20, reader at 0 of 20"));
}

TEST(TokenNetwork, SharesTheMemoryByBursts) {
    TokenNetwork network({.words_per_cycle = 0.5, .burst_words = 8});
    Fifo* fifo = network.add_fifo(16);
    network.add(Channel{.name = "in", .fifo = fifo, .words = 40});
    network.add(Channel{.name = "others", .words = 40});
    network.add(Process{.name = "sink", .steps = 40, .reads = {{fifo, always}}});
    const std::uint64_t cycles = network.run();
    EXPECT_GE(cycles, 160U);
    EXPECT_LE(cycles, 165U);
}

// --- Traces --------------------------------------------------------------------------------------

TEST(Trace, MergesEveryEntryAndGivesEveryWord) {
    for (const std::uint32_t kept : {1U, 656U, 65536U}) {
        const std::vector<bool> trace = merge_trace(kept);
        EXPECT_EQ(trace.size(), kTileGroups + kept);
        EXPECT_EQ(std::ranges::count(trace, true), kTileGroups);
        EXPECT_TRUE(trace.back());
    }
}

TEST(Trace, SendsTheBytesOfTheSmallestForm) {
    struct Shares {
        double changed;
        double escaped;
    };
    std::set<DeltaForm> forms;
    for (const Shares shares :
         {Shares{0, 0}, {0.002, 0.002}, {0.05, 0.0001}, {0.3, 0.3}, {0.6, 0.01}, {1, 1}}) {
        const DeltaTrace trace = delta_trace(delta_marks(shares.changed, shares.escaped));
        forms.insert(trace.form);
        std::uint64_t quads = 0;
        std::uint64_t parameters = 0;
        std::uint64_t bitmaps = 0;
        for (const auto& step : trace.steps) {
            quads += step.test(static_cast<std::size_t>(DeltaStep::writes_quad)) ? 1 : 0;
            parameters += step.test(static_cast<std::size_t>(DeltaStep::reads_parameters)) ? 1 : 0;
            bitmaps += step.test(static_cast<std::size_t>(DeltaStep::reads_bitmaps)) ? 1 : 0;
        }
        EXPECT_EQ(quads, trace.quads);
        EXPECT_EQ(parameters, kTileWordsOfHalves);
        EXPECT_EQ(bitmaps, kBitmapQuads);
    }
    EXPECT_EQ(forms.size(), 5U);
}

// Compares with the 64-bit words that the kernel writes for a trace's tile.
TEST(Trace, CountsTheWordsThatTheKernelWrites) {
    for (const double changed : {0.0, 0.002, 0.05, 0.3, 0.6, 1.0}) {
        const double escaped = changed == 0.05 || changed == 0.6 ? changed / 50 : changed;
        FreshStream fresh;
        BitmapStream plus;
        BitmapStream minus;
        KernelStream<DeltaCensus> censuses;
        KernelStream<std::uint64_t> quads;
        KernelStream<TileDelta> sent;
        KernelStream<TileDelta> reported;
        const DeltaMarks marks = delta_marks(changed, escaped);
        const DeltaTrace trace = delta_trace(marks);
        for (std::size_t i = 0; i < kBitmapQuads; ++i) {
            plus.write(marks.changed[i]);
            minus.write(marks.escaped[i]);
        }
        censuses.write(marks.census());
        for (std::uint32_t i = 0; i < kTileWordsOfHalves; ++i) {
            fresh.write(zero_word());
        }
        Job job = {};
        job.delivery = ParameterDelivery::deltas;
        encode_deltas(job, {0, 1}, fresh, plus, minus, censuses, quads, sent, reported);
        EXPECT_EQ(sent.read().form, trace.form);
        EXPECT_EQ((reported.read().payload_bytes + 7) / 8, trace.quads);
        for (std::uint64_t i = 0; i < trace.quads; ++i) {
            quads.read();
        }
    }
}

// --- The updater ---------------------------------------------------------------------------------

double words_per_tile(const UpdaterSettings& settings) {
    const std::vector<Channel> channels = channels_of(settings);
    return static_cast<double>(
        std::accumulate(channels.begin(), channels.end(), std::uint64_t{0},
                        [](std::uint64_t sum, const Channel& c) { return sum + c.words; }));
}

TEST(UpdaterModel, MovesTheBytesOfItsFormats) {
    const auto bytes_of = [](const UpdaterSettings& settings) {
        return words_per_tile(settings) * kWordBytes / kTileElems;
    };
    EXPECT_DOUBLE_EQ(bytes_of({}), 12 + 12 + 2 + 2);
    EXPECT_DOUBLE_EQ(bytes_of({.format = StateFormat::bf16}), 8 + 8 + 2 + 2);
    EXPECT_DOUBLE_EQ(bytes_of({.format = StateFormat::q8}), 2 * 6.03125 + 2 + 2);
    EXPECT_DOUBLE_EQ(bytes_of({.format = StateFormat::compact}), 2 * 4.03125 + 2 + 2);
    EXPECT_DOUBLE_EQ(bytes_of({.optimizer = Optimizer::sgd}), 8 + 8 + 2 + 2);
    EXPECT_DOUBLE_EQ(bytes_of({.codec = GradientCodec::q4, .sources = 2}), 24 + 2 * 0.53125 + 2);
    EXPECT_NEAR(bytes_of({.codec = GradientCodec::topk_bf16}), 24 + 0.04 + 2, 0.01);
}

// Several top-k payloads may take longer to merge: one cycle per entry and per word.
double ideal_cycles(const UpdaterSettings& settings) {
    const bool is_topk =
        settings.codec == GradientCodec::topk_bf16 || settings.codec == GradientCodec::topk_fp16;
    return std::max(kTileElems / kUpdateLanes,
                    is_topk ? settings.sources * (kTileGroups + 656) : 0);
}

TEST(UpdaterModel, KeepsTheLanesBusyWhereMemoryHasNoLimit) {
    for (const StateFormat format : kStateFormats) {
        for (std::uint32_t codec = 0; codec < kGradientCodecs; ++codec) {
            for (const std::uint32_t sources : {1U, 4U}) {
                const UpdaterSettings settings{.format = format,
                                               .codec = static_cast<GradientCodec>(codec),
                                               .sources = sources};
                const double ideal = ideal_cycles(settings);
                const UpdaterRun run = run_updater(settings, {}, StepTraffic::none);
                // Encoding moments adds one block of cycles per tile.
                EXPECT_GE(run.cycles_per_tile, ideal) << codec << " " << sources;
                EXPECT_LE(run.cycles_per_tile, 1.03 * ideal) << codec << " " << sources;
            }
        }
    }
}

// 4 parameters per cycle, plus 64 cycles per tile to output the sums of squares.
TEST(UpdaterModel, TakesTheCyclesOfTheLanesAndOfTheSumsOfSquares) {
    for (const auto delivery : {ParameterDelivery::parameters, ParameterDelivery::deltas}) {
        const UpdaterRun run =
            run_updater({.codec = GradientCodec::q4, .delivery = delivery}, {}, StepTraffic::none);
        EXPECT_DOUBLE_EQ(run.cycles_per_tile, 65536.0 / 4 + 64);
    }
}

TEST(UpdaterModel, IsBoundByTheMergeWhereEverythingIsKept) {
    const UpdaterRun run =
        run_updater({.codec = GradientCodec::topk_bf16, .keep = 1}, {}, StepTraffic::none);
    EXPECT_NEAR(run.cycles_per_tile, kTileElems + kTileGroups, 0.01 * kTileElems);
}

TEST(UpdaterModel, IsBoundByMemoryWhereThatIsSlow) {
    CardRates card;
    card.dram_share = 0.4;
    const UpdaterSettings settings{.codec = GradientCodec::q8};
    const double words_per_cycle =
        card.dram_share * card.dram_bytes_per_s / card.clock_hz / kWordBytes;
    const double ideal = words_per_tile(settings) / words_per_cycle;
    const UpdaterRun run = run_updater(settings, card, StepTraffic::kernel);
    EXPECT_NEAR(run.cycles_per_tile, ideal, 0.01 * ideal);
}

// The FIFO of new parameters is needed because a tile's delta leaves only after all of the tile is
// compared.
TEST(UpdaterModel, NeedsRoomForATileOfParametersThatWaitForTheirForm) {
    UpdaterSettings settings{.delivery = ParameterDelivery::deltas};
    EXPECT_LE(run_updater(settings, {}, StepTraffic::none).cycles_per_tile,
              1.03 * kTileElems / kUpdateLanes);
    settings.fresh_depth = kTileWordsOfHalves;
    EXPECT_GT(run_updater(settings, {}, StepTraffic::none).cycles_per_tile,
              1.03 * kTileElems / kUpdateLanes);
    settings.fresh_depth = kTileWordsOfHalves - 1;
    EXPECT_THROW(run_updater(settings, {}, StepTraffic::none), Error);
}

TEST(UpdaterModel, NeedsRoomForATileOfSumsOfSeveralPayloads) {
    const UpdaterRun run =
        run_updater({.sources = 4, .sum_depth = kShallowDepth}, {}, StepTraffic::none);
    EXPECT_GT(run.cycles_per_tile, 1.5 * kTileElems / kUpdateLanes);
}

// Bytes of state per parameter and the rate of each resource, computed by hand.
TEST(UpdaterModel, DividesEachResourceByItsBytes) {
    struct ByHand {
        StateFormat format;
        double state;  // bytes
    };
    const CardRates card;
    for (const ByHand one : {ByHand{StateFormat::fp32, 4 + 4 + 4},
                             {StateFormat::bf16, 4 + 2 + 2},
                             {StateFormat::q8, 4 + 1 + 1 + 2 * 4.0 / 256},
                             {StateFormat::compact, 2 + 1 + 1 + 2 * 4.0 / 256}}) {
        const CardEstimate seen = estimate({.format = one.format}, card);
        // The slower of reading and writing.
        EXPECT_NEAR(seen.ssd, 1.8e9 / one.state, 1);
        // 16 words of 64 bytes in 16 + 18 cycles, for both the state read and the state written.
        EXPECT_NEAR(seen.digest, 250e6 * 16 * 64 / 34 / (2 * one.state), 1);
        // State crosses memory six times: from flash, digest, in, out, digest, to flash. Gradient
        // and parameters cross twice each.
        const double by_memory = 0.75 * 19.2e9 / (6 * one.state + 2 * (2 + 2));
        EXPECT_NEAR(seen.dram, by_memory, 0.01 * by_memory);
        EXPECT_EQ(seen.bound, seen.dram < seen.ssd ? LimitedBy::dram : LimitedBy::ssd);
    }
}

TEST(UpdaterModel, SaysWhatBoundsTheCard) {
    const CardRates card;
    const CardEstimate by_default = estimate({}, card);
    EXPECT_EQ(by_default.bound, LimitedBy::ssd);
    EXPECT_DOUBLE_EQ(by_default.card, card.ssd_write_bytes_per_s / 12);
    EXPECT_GT(by_default.lanes_starved, 0.4);
    CardRates fast_ssd = card;
    fast_ssd.ssd_read_bytes_per_s = 1e12;
    fast_ssd.ssd_write_bytes_per_s = 1e12;
    const CardEstimate by_dram = estimate({}, fast_ssd);
    EXPECT_EQ(by_dram.bound, LimitedBy::dram);
    // 28 of the kernel, 48 of state and its digests, 4 over the host link.
    const double bytes = 28 + 48 + 4;
    EXPECT_NEAR(by_dram.card, card.dram_share * card.dram_bytes_per_s / bytes, 2e6);
    CardRates fast_memory = fast_ssd;
    fast_memory.dram_bytes_per_s = 1e12;
    EXPECT_EQ(estimate({}, fast_memory).bound, LimitedBy::digest);
    EXPECT_EQ(
        estimate({.format = StateFormat::compact, .codec = GradientCodec::topk_bf16, .keep = 1},
                 fast_memory)
            .bound,
        LimitedBy::lanes);
}

}  // namespace
}  // namespace nearstep::fpga
