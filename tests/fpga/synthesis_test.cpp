// The kernels in hardware form, where one region of processes handles all tiles of a launch, give
// the same bits. Their objects are compiled with __SYNTHESIS__ defined.
#include "base/digest.hpp"
#include "fpga/same_bits.hpp"
#include "fpga/sample_subgroups.hpp"
#include "fpga/subgroup.hpp"
#include "support/test.hpp"
#include "support/update_values.hpp"

namespace nearstep::fpga {
namespace {

TEST(Synthesized, UpdatesAllTilesInOneRegion) {
    for (const StateFormat format : kStateFormats) {
        for (const std::string codec : {"dense", "topk", "q8", "q4"}) {
            for (const auto delivery : {ParameterDelivery::parameters, ParameterDelivery::deltas}) {
                SCOPED_TRACE(codec);
                Subgroup start = random_subgroup({.format = format,
                                                  .codec = {.name = codec},
                                                  .tiles = 3,
                                                  .sources = 2,
                                                  .delivery = delivery},
                                                 1);
                expect_bits_of_engines(start, sane_scalars(Optimizer::adamw));
            }
        }
    }
}

// Here one process reads the runs of all tiles before the lanes take the first.
TEST(Synthesized, TakesTheRunsOfAllTiles) {
    csd::StepScalars scalars(sane_scalars(Optimizer::adamw));
    scalars.of_group[1] = sane_scalars(Optimizer::lion);
    scalars.of_group[2] = sane_scalars(Optimizer::sgd);
    const csd::GroupMap groups(std::vector<csd::GroupRun>{
        {5 * kTile + 160, 0}, {7 * kTile - 16, 1}, {7 * kTile + 32, 2}, {9 * kTile, 0}});
    expect_bits_of_engines(random_subgroup({.tiles = 3}, 5), scalars, 1, groups);
}

TEST(Synthesized, ReportsEveryTile) {
    Subgroup subgroup({.tiles = 3});
    Samples samples = random_samples(2, subgroup.elems());
    samples.gradient[kTile] = INFINITY;
    samples.gradient[3 * kTile - 1] = NAN;
    subgroup.set_state(samples.state());
    subgroup.set_gradient(0, samples.gradient);
    subgroup.run_kernel(sane_scalars(Optimizer::sgd));
    for (std::uint32_t tile = 0; tile < 3; ++tile) {
        EXPECT_EQ(subgroup.tile_report(tile).gradients_not_finite, tile == 0 ? 0U : 1U);
        EXPECT_EQ(subgroup.tile_report(tile).parameter_digest,
                  xxh3(subgroup.parameters().subspan(tile * kTile * 2, kTile * 2)));
    }
    EXPECT_EQ(subgroup.totals().gradients_not_finite, 2U);
}

TEST(Synthesized, DigestsWhatIsStored) {
    std::vector<Word> memory(3 * 4096 / kWordBytes);
    for (std::size_t i = 0; i < memory.size(); ++i) {
        memory[i].of[i % kWordUnits] = static_cast<std::uint32_t>(i * 2654435761U);
    }
    Word out = {};
    nearstep_digest(memory.data(), &out, 0, 3 * 4096);
    std::uint64_t digest = 0;
    std::memcpy(&digest, &out, sizeof digest);
    EXPECT_EQ(digest, xxh3(std::as_bytes(std::span(memory))));
}

}  // namespace
}  // namespace nearstep::fpga
