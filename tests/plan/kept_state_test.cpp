// Tests plans for state that is kept in memory, with and without logs.
#include "plan/kept_state.hpp"

#include "csd/payload_memory.hpp"
#include "csd/state_volume.hpp"
#include "plan/cost.hpp"
#include "sample_problem.hpp"
#include "support/test.hpp"

namespace nearstep::plan {
namespace {

constexpr std::size_t kTiles = 160;
constexpr std::size_t kOfSubgroup = 16;

// One GPU and one device, whose state is in memory.
Problem one_device(csd::Keeping keeping) {
    Problem problem = seven_billion(1);
    problem.site.gpus = problem.site.csds = 1;
    problem.work.model = {
        .parameters = kTiles * shard::kTileElems, .largest_block = shard::kTileElems, .blocks = 10};
    problem.work.state = arith::StateFormat::compact;
    problem.work.state_bytes = state_bytes_of(problem.work.state);
    problem.work.keeping = keeping;
    problem.work.is_in_memory = keeping != csd::Keeping::twice;
    return problem;
}

Choice with_q4() {
    Choice choice;
    choice.codec = Codec::q4;
    choice.shares.memory = 1;
    choice.subgroup_tiles = kOfSubgroup;
    return choice;
}

TEST(Keeping, APlanCountsWhatTheStartReserves) {
    const Problem problem = one_device(csd::Keeping::logged);
    const Choice choice = with_q4();
    const KeptState kept = kept_state(problem, choice, Numbers(problem, choice));
    csd::StateVolumeSettings volume;
    volume.state = arith::StateFormat::compact;
    volume.spare = kept.logged.spare_places();
    volume.volume.files = {"state"};
    for (std::size_t begin = 0; begin < kTiles; begin += kOfSubgroup) {
        shard::Subgroup& subgroup = volume.subgroups.emplace_back();
        subgroup.tiles = {begin, begin + kOfSubgroup};
    }
    const std::size_t payload = codec::make_codec({.name = "q4"})->payload_bytes();
    volume.log_bytes = kTiles * csd::PayloadMemory::tile_bytes(payload, 1);
    volume.logs.assign(csd::kUsualLogs, "log");
    double bytes = 0;
    double written = 0;
    for (const store::PlannedFile& file : csd::StateVolume::planned_files(volume)) {
        bytes += static_cast<double>(file.bytes);
        written += static_cast<double>(file.step_bytes);
    }
    EXPECT_NEAR(kept.drive, bytes, 0.001 * bytes);
    EXPECT_NEAR(kept.written, written, 0.001 * written);
    EXPECT_NEAR(kept.memory, 4.03 * kTiles * shard::kTileElems, 0.01 * kept.memory);
}

TEST(Keeping, StateInMemoryIsThereOnceAndWearsNoDrive) {
    Choice choice = with_q4();
    const Problem once = one_device(csd::Keeping::once);
    const double state = once.work.state_bytes * kTiles * shard::kTileElems;
    const KeptState kept = kept_state(once, choice, Numbers(once, choice));
    EXPECT_EQ(kept.written + kept.drive, 0);
    EXPECT_GT(kept.memory, state);
    EXPECT_LT(kept.memory, 2.2 * state) << "a small state has as many spare places as subgroups";
    EXPECT_EQ(cost_of(once, choice).volumes.device_write, 0);
    choice.shares = {};
    const Problem twice = one_device(csd::Keeping::twice);
    EXPECT_DOUBLE_EQ(kept_state(twice, choice, Numbers(twice, choice)).drive, 2 * state);
}

TEST(Keeping, StateOnADriveIsThereTwiceOnlyIfItSurvivesAPowerCut) {
    config::EngineSettings settings;
    settings.mode = config::Mode::su_o;
    EXPECT_EQ(keeping_of(settings, false), csd::Keeping::twice);
    EXPECT_EQ(keeping_of(settings, true), csd::Keeping::once);
    settings.csd.durability = config::Durability::checkpoint;
    EXPECT_EQ(keeping_of(settings, false), csd::Keeping::once);
    settings.mode = config::Mode::base;
    EXPECT_EQ(keeping_of(settings, false), csd::Keeping::twice);
    Problem problem = one_device(csd::Keeping::twice);
    const Choice choice;
    const double drive = kept_state(problem, choice, Numbers(problem, choice)).drive;
    problem.work.keeping = csd::Keeping::once;
    EXPECT_DOUBLE_EQ(kept_state(problem, choice, Numbers(problem, choice)).drive, drive / 2);
}

TEST(Keeping, TheRoomDecidesHowManyLogsThereAre) {
    EXPECT_EQ(csd::logs_within(0, 1e9), csd::kUsualLogs);
    EXPECT_EQ(csd::logs_within(5.5e9, 1e9), 5U);
    EXPECT_EQ(csd::logs_within(1e15, 1e9), csd::kMostLogs);
    Problem problem = one_device(csd::Keeping::logged);
    const Choice choice = with_q4();
    problem.work.log_room = 1e6;
    const Demand tight = cost_of(problem, choice).demand;
    EXPECT_FALSE(does_fit(tight, problem.site));
    EXPECT_EQ(fits_of(tight, problem.site).back().memory, "room for logs (csd.log_gb)");
    problem.work.log_room = 1e9;
    const Demand wide = cost_of(problem, choice).demand;
    EXPECT_EQ(fits_of(wide, problem.site).back().available, 1e9);
    EXPECT_LE(fits_of(wide, problem.site).back().ratio(), 1);
}

TEST(Keeping, WritesToADriveMayBoundTheStep) {
    Problem problem = one_device(csd::Keeping::logged);
    const Choice choice = with_q4();
    problem.work.sequences = 1;
    problem.site.device_write = 1e3;
    const double written = kept_state(problem, choice, Numbers(problem, choice)).written;
    EXPECT_DOUBLE_EQ(cost_of(problem, choice).terms.step, written / 1e3);
}

}  // namespace
}  // namespace nearstep::plan
