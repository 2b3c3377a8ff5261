// Tests steps of all ranks that fail or come out of turn.
#include "offload/step_pipeline.hpp"

#include "csd/cpu_device.hpp"
#include "csd/device_fixture.hpp"
#include "csd/state_commit.hpp"
#include "support/test.hpp"

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

namespace nearstep::offload {
namespace {

using shard::kTileElems;

constexpr std::size_t kParameters = 7 * kTileElems + 1234;
constexpr std::size_t kTiles = 8;
const std::vector<ElementRange> kPipelineBlocks = {
    {0, 2 * kTileElems + 10}, {2 * kTileElems + 10, 5 * kTileElems}, {5 * kTileElems, kParameters}};

// How far a step gets before its pipeline is destroyed.
enum class Moment {
    before,       // before the step
    begun,        // update begun, before any gradient
    in_backward,  // last block's gradient put
    put,          // all blocks' gradients put
    summed,       // norm computed
    accepted,
    advanced,  // to the end of the first tile
    finished
};

mpi::Communicator make_world() { return mpi::Communicator::world(std::chrono::seconds(20)); }

// One device per rank, whose file outlives the pipelines that use it.
class OneDevicePerRank {
public:
    explicit OneDevicePerRank(const mpi::Communicator& world)
        : world_(world),
          owners_(make_owners(world.size())),
          codec_(codec::make_codec({.name = "dense"})) {}

    // `nodes`: one per rank, or one for all ranks.
    std::unique_ptr<StepPipeline> make_pipeline(csd::HandlerKind handler,
                                                const mpi::Topology& nodes) {
        std::vector<std::unique_ptr<csd::Device>> devices;
        devices.push_back(make_device(nodes.groups()));
        PipelineSettings settings;
        settings.owners = &owners_;
        settings.codec = codec_.get();
        settings.groups = nodes;
        settings.nodes = nodes;
        settings.handler = handler;
        settings.vector = &vector_;
        settings.blocks = kPipelineBlocks;
        settings.pool = &pool_;
        return std::make_unique<StepPipeline>(world_, settings, std::move(devices), traffic_);
    }

    // Writes the state of generation 0.
    void write_start_values(StepPipeline& pipeline) {
        for (const auto& device : pipeline.devices()) {
            device->reserve();
        }
        for (const OwnedSubgroup& of : pipeline.subgroups()) {
            csd::State state(of.tiles.size());
            std::fill(state.master.begin(), state.master.end(), 1.0F);
            of.write(0, state.arrays());
        }
    }

    void put_gradient(StepPipeline& pipeline, std::size_t block) {
        const std::vector<float> gradient(kPipelineBlocks[block].size(), 0.5F);
        const shard::GradientPart part{gradient.data(), Dtype::fp32, gradient.size()};
        pipeline.put_gradient(block, {.parts = {&part, 1}});
    }

    void take_step(StepPipeline& pipeline, Moment last) {
        if (last == Moment::before) {
            return;
        }
        pipeline.begin_step({.codec = codec_.get()});
        pipeline.begin_update(csd::test_scalars(), [this] { ++followed_; });
        for (std::size_t block = kPipelineBlocks.size(); last > Moment::begun && block-- > 0;) {
            put_gradient(pipeline, block);
            if (last == Moment::in_backward) {
                return;
            }
        }
        if (last >= Moment::summed) {
            const GradientSum sum = pipeline.finish_gradients();
            EXPECT_TRUE(sum.is_finite);
            EXPECT_NEAR(sum.norm / (0.5 * world_.size() * std::sqrt(kParameters)), 1, 1e-12);
        }
        if (last >= Moment::accepted) {
            pipeline.accept_update();
        }
        if (last >= Moment::advanced) {
            const ElementRange first{0, 1};
            pipeline.await({&first, 1}, {});
        }
        if (last >= Moment::finished) {
            pipeline.finish_step();
        }
    }

    // Reads the file while no pipeline uses it.
    void expect_whole_state(std::int64_t generation) {
        const auto device = make_device(1);
        for (std::size_t s = 0; s < device->subgroups().size(); ++s) {
            csd::State state(device->subgroups()[s].tiles.size());
            EXPECT_NO_THROW(device->read_state(s, generation, state.arrays()));
            EXPECT_EQ(state.master.front() == 1.0F, generation == 0);
        }
    }

    int followed() const { return followed_; }

private:
    static shard::Ownership make_owners(int ranks) {
        const auto devices = static_cast<std::size_t>(ranks);
        shard::Replica copy{.ranks = {},
                            .devices = shard::DeviceMap(std::vector<int>(devices, 1)),
                            .partition = shard::Partition({.parameters = kParameters,
                                                           .speeds = std::vector(devices, 1.0),
                                                           .subgroup_tiles = 2})};
        for (int rank = 0; rank < ranks; ++rank) {
            copy.ranks.push_back(rank);
        }
        std::vector<shard::Replica> copies;
        copies.push_back(std::move(copy));
        return shard::Ownership(std::move(copies));
    }

    std::unique_ptr<csd::Device> make_device(int sources) {
        csd::DeviceSettings settings;
        settings.name = "device under test";
        settings.files = {folder_.file("state")};
        settings.subgroups = owners_.copy(0).partition.subgroups_of(world_.rank());
        settings.parameters = kParameters;
        settings.codec = codec_.get();
        settings.sources = sources;
        settings.executor = &pool_;
        return csd::make_cpu_device(settings, traffic_);
    }

    const mpi::Communicator& world_;
    ScratchFolder folder_;
    shard::Ownership owners_;
    std::unique_ptr<codec::Codec> codec_;
    trace::Traffic traffic_;
    Executor pool_{1};
    memory::Buffer vector_{kTiles * kTileElems * size_bytes(Dtype::bf16)};
    std::atomic<int> followed_{0};
};

struct Way {
    Moment last;
    csd::HandlerKind handler;
    bool has_nodes;  // each rank is its own node
};

class PipelineThatGoes : public testing::TestWithParam<Way> {};

TEST_P(PipelineThatGoes, WaitsForNoGradientAndLeavesAWholeState) {
    const mpi::Communicator world = make_world();
    OneDevicePerRank ranks(world);
    const mpi::Topology nodes =
        GetParam().has_nodes ? mpi::each_rank_alone(world.size()) : mpi::discover_nodes(world);
    auto pipeline = ranks.make_pipeline(GetParam().handler, nodes);
    ranks.write_start_values(*pipeline);
    world.barrier();
    ranks.take_step(*pipeline, GetParam().last);
    pipeline.reset();
    const bool is_accepted = GetParam().last >= Moment::accepted;
    EXPECT_EQ(ranks.followed(), is_accepted ? 1 : 0);
    ranks.expect_whole_state(is_accepted ? 1 : 0);
}

std::vector<Way> all_ways() {
    std::vector<Way> ways;
    for (const bool has_nodes : {false, true}) {
        for (const auto handler : {csd::HandlerKind::naive, csd::HandlerKind::overlapped}) {
            for (const Moment last :
                 {Moment::before, Moment::begun, Moment::in_backward, Moment::put, Moment::summed,
                  Moment::accepted, Moment::advanced, Moment::finished}) {
                ways.push_back({last, handler, has_nodes});
            }
        }
    }
    return ways;
}

std::string name_of_way(const testing::TestParamInfo<Way>& way) {
    const std::string moment = text("Moment", static_cast<int>(way.param.last));
    const bool is_naive = way.param.handler == csd::HandlerKind::naive;
    return moment + (is_naive ? "Naive" : "Overlapped") + (way.param.has_nodes ? "OnNodes" : "");
}

INSTANTIATE_TEST_SUITE_P(AtAnyMoment, PipelineThatGoes, testing::ValuesIn(all_ways()), name_of_way);

// No rank lists a step before all have it: otherwise a crash could leave a step that only some
// ranks hold. The rank that comes late only makes it likely that a rank that does not wait is seen.
TEST(CommitOfAllRanks, ListsAStepOnNoRankBeforeAllRanksHaveIt) {
    const mpi::Communicator world = make_world();
    const ScratchFolder own;
    const std::string folder = world.broadcast(own.path(), 0);
    const auto manifest_of = [&](int rank) { return text(folder, "/rank-", rank, ".manifest"); };
    const auto commits_of = [&](int rank) {
        return store::ManifestFile(manifest_of(rank)).read().value().commits.size();
    };
    OneDevicePerRank ranks(world);
    const auto pipeline = ranks.make_pipeline(csd::HandlerKind::naive, mpi::discover_nodes(world));
    ranks.write_start_values(*pipeline);
    csd::StateCommit log(manifest_of(world.rank()));
    log.begin({.line = {.run = "run"}, .steps = 2});
    log.claim();
    world.barrier();
    if (world.rank() == world.size() - 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        for (int rank = 0; rank < world.size(); ++rank) {
            EXPECT_EQ(commits_of(rank), 0U) << rank;
        }
    }
    log.prepare(pipeline->devices());
    pipeline->commit(log, {.step = 1, .generation = 1});
    world.barrier();
    for (int rank = 0; rank < world.size(); ++rank) {
        EXPECT_EQ(commits_of(rank), 1U) << rank;
    }
    world.barrier();  // before the folder goes
}

TEST(StepStates, RefuseWhatDoesNotComeNext) {
    StepState state;
    EXPECT_THROW(state.enter(Stage::summed), ContractError);
    EXPECT_THROW(state.enter(Stage::ending), ContractError);
    EXPECT_THROW(state.enter(Stage::idle), ContractError);
    state.enter(UpdateStage::reading);
    state.enter(Stage::backward);
    EXPECT_THROW(state.enter(Stage::backward), ContractError);
    EXPECT_THROW(state.enter(UpdateStage::accepted), ContractError);
    state.enter(UpdateStage::begun);
    EXPECT_THROW(state.enter(UpdateStage::reading), ContractError);
    EXPECT_THROW(state.enter(UpdateStage::begun), ContractError);
    EXPECT_THROW(state.enter(UpdateStage::accepted), ContractError);  // gradients are missing
    state.enter(Stage::summed);
    state.enter(UpdateStage::accepted);
    state.enter(Stage::ending);
    EXPECT_THROW(state.enter(Stage::backward), ContractError);
    state.enter(UpdateStage::none);
    EXPECT_THROW(state.enter(UpdateStage::begun), ContractError);
    state.enter(Stage::idle);
    EXPECT_EQ(state.stage(), Stage::idle);
    EXPECT_EQ(state.update(), UpdateStage::none);
}

}  // namespace
}  // namespace nearstep::offload
