// Speeds of devices: measured once, used again at a restart, and set by csd.tiers.
#include "engine/placement/device_speeds.hpp"

#include "engine/placement/devices.hpp"
#include "engine/placement/layout_line.hpp"
#include "engine/placement/speed_trial.hpp"
#include "engine/placement/tier_shares.hpp"
#include "engine/restart/start.hpp"
#include "engine/run_fixture.hpp"
#include "support/test.hpp"

namespace nearstep::engine {
namespace {

using shard::kTileElems;
using testing::DoubleNear;
using testing::Gt;

constexpr std::size_t kElems = 40 * kTileElems;
constexpr double kOnceGb = 12 * static_cast<double>(kElems) / 1e9;  // fp32
constexpr double kStateGb = 2 * kOnceGb;                            // two generations

// Two drives per rank, as many folders.
config::EngineSettings two_drives(const std::string& folder) {
    config::EngineSettings settings;
    settings.compress.codec = config::PayloadCodec::dense;
    settings.csd.path = {folder + "/a", folder + "/b"};
    settings.csd.per_rank = {2};
    settings.csd.speed = {};
    return settings;
}

mpi::Communicator world() { return mpi::Communicator::world(std::chrono::seconds(60)); }

std::vector<double> resolved(const mpi::Communicator& world, const config::EngineSettings& settings,
                             const std::vector<double>& known = {}) {
    PlacedSettings placed{settings};
    placed.placement =
        config::resolved_placement(settings, {.all = world.size(), .of_node = world.size()});
    resolve_speeds(world, placed, {.elems = kElems}, known);
    return placed.speeds;
}

TEST(SettleSpeeds, MeasuresAllDevicesAndLeavesNoFile) {
    const mpi::Communicator all = world();
    const std::string folder = new_folder(all, "speeds");
    const std::vector<double> speeds = resolved(all, two_drives(folder));
    EXPECT_THAT(speeds, SizeIs(static_cast<std::size_t>(2 * all.size())));
    EXPECT_THAT(speeds, Each(Gt(0.0)));
    all.barrier();
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
        EXPECT_TRUE(entry.is_directory()) << entry.path();
    }
}

TEST(SettleSpeeds, MeasuresNothingIfTheSpeedsAreKnown) {
    const mpi::Communicator all = world();
    const std::string folder = new_folder(all, "speeds");
    const std::vector<double> known(static_cast<std::size_t>(2 * all.size()), 1234567.25);
    EXPECT_EQ(resolved(all, two_drives(folder), known), known);
    EXPECT_TRUE(fs::is_empty(folder));
}

TEST(SettleSpeeds, ARestartFindsTheLayoutOfTheRunThatMeasured) {
    const mpi::Communicator all = world();
    const config::EngineSettings settings = two_drives(new_folder(all, "speeds"));
    const Layout layout{.blocks = {{0, kElems}}, .elems = kElems};
    std::vector<double> measured;
    for (const StartRequest::Kind kind : {StartRequest::Kind::none, StartRequest::Kind::resume}) {
        engine::Run run = engine::Run::open(all, settings, layout, {.kind = kind},
                                            {.model = "one block", .steps = 1}, {});
        run.begin([](std::size_t, std::span<float> masters) { std::ranges::fill(masters, 1.0F); });
        if (kind == StartRequest::Kind::none) {
            measured = run.settings().speeds;
        }
        EXPECT_EQ(run.settings().speeds, measured);
        EXPECT_EQ(run.begins_anew(), kind == StartRequest::Kind::none);
        all.barrier();
    }
}

// The findings of one rank, whose older set of names has other speeds.
Findings two_sets(StartRequest::Kind kind) {
    Findings found{.ranks = {{.manifests = {"p/rank-0.manifest", "p/rank-0.set-1.manifest"}}},
                   .request = {.kind = kind}};
    for (int set = 0; set < kSets; ++set) {
        PlacedSettings settings{two_drives("/nowhere")};
        settings.speeds = {7.0 + set, 30};
        store::Manifest manifest{
            .layout = layout_line(settings, 1, make_copy(settings, kElems, {0}, 1)),
            .commits = {{.step = 5 + set}}};
        found.manifests.push_back({.path = found.ranks[0].manifests[static_cast<std::size_t>(set)],
                                   .set = set,
                                   .manifest = std::move(manifest)});
    }
    return found;
}

TEST(KnownSpeeds, AreThoseOfTheNewestManifestOfTheSameDevices) {
    Findings found = two_sets(StartRequest::Kind::resume);
    EXPECT_THAT(known_speeds(found, {2}), ElementsAre(8, 30));
    EXPECT_THAT(known_speeds(found, {1}), IsEmpty());
    EXPECT_THAT(known_speeds(two_sets(StartRequest::Kind::fresh), {2}), IsEmpty());
    found.manifests[1].path = "p/rank-3.manifest";  // not of a rank of this run
    EXPECT_THAT(known_speeds(found, {2}), ElementsAre(7, 30));
}

TEST(SettleSpeeds, GivesMemoryHalfOfWhatIsFreeUnlessAnEarlierRunHasAShareThere) {
    const mpi::Communicator all = world();
    config::EngineSettings settings = two_drives(new_folder(all, "speeds"));
    settings.csd.speed = {1.0};
    settings.csd.tiers.memory = std::nullopt;
    const std::vector<double> known =
        resolved(all, settings, std::vector<double>(3 * all.size(), 1));
    EXPECT_THAT(known, Each(1));
    // The state is small, so that all of it has room there.
    const std::vector<double> speeds = resolved(all, settings);
    ASSERT_THAT(speeds, SizeIs(static_cast<std::size_t>(3 * all.size())));
    for (std::size_t device = 0; device < speeds.size(); ++device) {
        EXPECT_EQ(speeds[device] > 0, device % 3 == 2) << device;
    }
}

TEST(SettleSpeeds, LeavesCardsAndModeBaseEqual) {
    const mpi::Communicator all = world();
    config::EngineSettings settings = two_drives(new_folder(all, "speeds"));
    settings.mode = config::Mode::base;
    EXPECT_THAT(resolved(all, settings), IsEmpty());
    settings.mode = config::Mode::su_o;
    settings.csd.device = config::DeviceKind::xrt;
    EXPECT_THAT(resolved(all, settings), IsEmpty());
    EXPECT_THAT(config::device_speeds(settings, 2), testing::ElementsAre(1, 1, 1, 1));
}

TEST(SpeedsOfTrials, AreTheBetterOfTwoIfADeviceSeemsMuchSlower) {
    const auto speeds_of = [](std::vector<std::vector<double>> trials) {
        std::ranges::reverse(trials);
        return speeds_of_trials([&] {
            std::vector<double> last = trials.back();
            trials.pop_back();
            return last;
        });
    };
    using Speeds = std::vector<double>;
    EXPECT_EQ(speeds_of({{100, 30, 0}}), (Speeds{100, 30, 0}));
    EXPECT_EQ(speeds_of({{100, 1, 0}, {90, 80, 0}}), (Speeds{100, 80, 0})) << "it was busy";
    EXPECT_EQ(speeds_of({{100, 1, 0}, {90, 2, 0}}), (Speeds{100, 2, 0})) << "it is slow";
}

TEST(BalancedSpeeds, AreTheMeasuredOnesIfNothingIsKept) {
    EXPECT_THAT(
        balanced_speeds({{.of_read = 30, .of_kept = 30}, {.of_read = 7, .of_kept = 7}}, 1000),
        ElementsAre(DoubleNear(30, 1e-6), DoubleNear(7, 1e-6)));
    EXPECT_THAT(balanced_speeds({}, 1000), IsEmpty());
}

// The second device reads nothing, nothing of what is more than 300 tiles, and all.
TEST(BalancedSpeeds, CountWhatSlotsKeep) {
    const UnequalDevice memory{.of_read = 100, .of_kept = 100};
    const auto shares = [&](double if_all_fit, double otherwise) {
        return balanced_speeds(
            {memory,
             {.of_read = 20, .of_kept = 50, .if_all_fit = if_all_fit, .otherwise = otherwise}},
            1500);
    };
    EXPECT_THAT(shares(600, 450), ElementsAre(DoubleNear(100, 1e-6), DoubleNear(50, 1e-6)));
    // 300 tiles in 6 s, and 20 in each further one: (1500 - 300 + 120) / 120 = 11 s.
    EXPECT_THAT(shares(350, 300), ElementsAre(DoubleNear(100, 1e-6), DoubleNear(400.0 / 11, 1e-6)));
    // 490 would all be kept, and are ready after 9.8 s; of more only 100 are.
    EXPECT_THAT(shares(490, 100), ElementsAre(DoubleNear(100, 1e-6), DoubleNear(490 / 10.1, 1e-6)));
}

// Tiles in memory of each of two ranks.
std::vector<std::size_t> tiles_of_last(const PlacedSettings& settings) {
    const shard::Replica copy = make_copy(settings, kElems, {0, 1}, 2);
    std::vector<std::size_t> tiles = {0, 0};
    for (const shard::Subgroup& subgroup : copy.partition.subgroups()) {
        const int rank = copy.devices.rank_of(subgroup.device);
        if (subgroup.device == copy.devices.first(rank) + copy.devices.count(rank) - 1) {
            tiles[static_cast<std::size_t>(rank)] += subgroup.tiles.size();
        }
    }
    return tiles;
}

TEST(SettleTiers, GiveEachRankItsShareInMemoryWhateverTheDrivesSpeeds) {
    for (const std::vector<double>& speed : {std::vector<double>{1}, {1, 3, 1, 50}}) {
        PlacedSettings settings{two_drives("/nowhere")};
        settings.csd.speed = speed;
        settings.csd.tiers.memory = kStateGb / 4;
        resolve_tiers(settings, kElems, {0, 1}, 2);
        EXPECT_THAT(config::devices_per_rank(settings, 2), testing::ElementsAre(3, 3));
        EXPECT_THAT(tiles_of_last(settings), testing::ElementsAre(10, 10));
        const std::vector<std::string> files = state_files(settings, 1, 2);
        EXPECT_EQ(files.at(0), "/nowhere/a/rank-1.device-0.state");
        EXPECT_EQ(files.at(2), config::memory_folder(settings) + "/rank-1.device-2.state");
    }
}

// The tiles of each of a rank's two drives, its memory and its GPU.
std::vector<std::size_t> tiles_of_rank_0(const PlacedSettings& settings) {
    const shard::Replica copy = make_copy(settings, kElems, {0, 1}, 2);
    std::vector<std::size_t> tiles(4);
    for (const shard::Subgroup& subgroup : copy.partition.subgroups()) {
        if (subgroup.device < 4) {
            tiles[static_cast<std::size_t>(subgroup.device)] += subgroup.tiles.size();
        }
    }
    return tiles;
}

// Each of two ranks has 20 of the 40 tiles.
TEST(SettleTiers, FillTheGpuFirstThenMemoryAndThenDrives) {
    const auto tiles = [](double gpu, double memory) {
        PlacedSettings settings{two_drives("/nowhere")};
        settings.csd.speed = {1.0};
        settings.csd.tiers = {.gpu = gpu * kOnceGb / 40, .memory = memory * kStateGb / 40};
        resolve_tiers(settings, kElems, {0, 1}, 2);
        return tiles_of_rank_0(settings);
    };
    EXPECT_THAT(tiles(4, 10), testing::ElementsAre(3, 3, 10, 4));
    EXPECT_THAT(tiles(16, 10), testing::ElementsAre(0, 0, 4, 16));
    EXPECT_THAT(tiles(20, 1), testing::ElementsAre(0, 0, 0, 20));
    EXPECT_THAT(tiles(1000, 1), testing::ElementsAre(0, 0, 0, 20));
}

TEST(SettleTiers, SayWhatEachTierSurvives) {
    PlacedSettings settings{two_drives("/nowhere")};
    settings.csd.speed = {1.0};
    settings.csd.durability = config::Durability::checkpoint;
    settings.csd.tiers = {.gpu = kOnceGb / 10, .memory = kOnceGb / 4};
    resolve_tiers(settings, kElems, {0, 1}, 2);
    const shard::Ownership owners({make_copy(settings, kElems, {0, 1}, 2)});
    EXPECT_THAT(
        describe_tiers(settings, owners),
        testing::ElementsAre(HasSubstr("in GPU memory: 3.1 MB of a rank; it survives nothing"),
                             HasSubstr("survives a killed process, but after a reboot"),
                             HasSubstr("on drives: 4.7 MB of a rank")));
    std::vector<store::PlannedFile> planned = planned_files(settings, 0, 2, owners.copy(0));
    EXPECT_THAT(planned, SizeIs(3)) << "GPU memory has no file";
    settings.csd.durability = config::Durability::step;
    EXPECT_THAT(describe_tiers(settings, owners).back(), HasSubstr("it survives a power cut"));
}

TEST(SettleTiers, RefuseARankWithoutDrivesForTheRest) {
    PlacedSettings settings{two_drives("/nowhere")};
    settings.csd.speed = {1.0};
    settings.csd.per_rank = {2, 0};
    settings.csd.tiers.gpu = kOnceGb / 2;
    EXPECT_THAT(message_of([&] { resolve_tiers(settings, kElems, {1}, 2); }),
                HasSubstr("16 MB of 31 MB of state on rank 1"));
    settings.csd.tiers.gpu = kOnceGb;
    resolve_tiers(settings, kElems, {1}, 2);
    EXPECT_THAT(settings.speeds, testing::ElementsAre(1, 1, 1, 1));
}

TEST(ReadAheadBytes, AreForDevicesInStorageAlone) {
    const auto of_rank = [](const PlacedSettings& settings, std::size_t rank) {
        std::vector<bool> are_given;
        for (const ReadAheadBytes& bytes : read_ahead_bytes(
                 settings, config::tiers_per_rank(settings, 2)[rank],
                 state_files(settings, static_cast<int>(rank), 2), {.ranks_beside = 1})) {
            are_given.push_back(bytes.host > 0);
        }
        return are_given;
    };
    PlacedSettings settings{two_drives("/nowhere")};
    settings.csd.tiers.gpu = 1;
    EXPECT_THAT(of_rank(settings, 0), testing::ElementsAre(true, true, false));
    settings.csd.storage_ranks = 1;
    EXPECT_THAT(of_rank(settings, 0), testing::ElementsAre(false)) << "a GPU and no drive";
    EXPECT_THAT(of_rank(settings, 1), testing::ElementsAre(true, true));
}

TEST(SettleGpu, RefusesARankWithoutAGpuAndTakesNothingForAuto) {
    const mpi::Communicator all = world();
    PlacedSettings settings{two_drives("/nowhere")};
    settings.csd.tiers.gpu = std::nullopt;
    resolve_gpu(all, settings, {});
    EXPECT_EQ(settings.csd.tiers.gpu, 0);
    settings.csd.tiers.gpu = 8;
    EXPECT_THAT(message_of([&] { resolve_gpu(all, settings, {}); }),
                HasSubstr("csd.tiers.gpu = 8 keeps state in GPU memory, but rank"));
}

TEST(MemoryFolder, DependsOnTheFirstPathAlone) {
    config::EngineSettings settings = two_drives("/data/run");
    const std::string folder = config::memory_folder(settings);
    EXPECT_THAT(folder, testing::StartsWith("/dev/shm/nearstep-a-"));
    settings.csd.path = {"/data/run/x/../a/", "/elsewhere"};
    EXPECT_EQ(config::memory_folder(settings), folder);
    settings.csd.path = {"/data/other/a"};
    EXPECT_NE(config::memory_folder(settings), folder);
}

}  // namespace
}  // namespace nearstep::engine
