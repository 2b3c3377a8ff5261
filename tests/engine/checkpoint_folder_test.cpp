// Tests what is said of the notice before a kill, files without a manifest, and shared folders.
#include "engine/state/checkpoint_folder.hpp"

#include "checkpoint/checkpoint.hpp"
#include "engine/restart/folder_search.hpp"
#include "store/names.hpp"
#include "store/subgroup_header.hpp"
#include "support/test.hpp"

namespace nearstep::engine {
namespace {

config::EngineSettings run_with(config::Durability durability) {
    config::EngineSettings run;
    run.csd.durability = durability;
    return run;
}

// 80 GB at 0.25 GB/s.
constexpr CheckpointTime kLong{.seconds = 320, .bytes = 8e10, .probed_bytes = 1.6e7};

TEST(Notice, IsComparedWithTheTimeOfACheckpoint) {
    EXPECT_THAT(describe_notice(run_with(config::Durability::checkpoint), kLong, 400),
                ElementsAre(AllOf(HasSubstr("about 320 s"), HasSubstr("80 GB"), HasSubstr("16 MB"),
                                  states("400 s"))));
    EXPECT_THAT(
        describe_notice(run_with(config::Durability::checkpoint), kLong, 120),
        ElementsAre(states("120 s"), AllOf(HasSubstr("warning"), HasSubstr("--signal=USR1@"))));
    EXPECT_THAT(describe_notice(run_with(config::Durability::checkpoint), kLong, 0),
                ElementsAre(HasSubstr("about 320 s")));
}

TEST(Notice, IsLongEnoughWhereEveryStepIsDurable) {
    EXPECT_THAT(describe_notice(run_with(config::Durability::step), {}, 120),
                ElementsAre(AllOf(HasSubstr("120 s"), Not(HasSubstr("warning")))));
    EXPECT_THAT(describe_notice(run_with(config::Durability::step), {}, 0), IsEmpty());
}

TEST(Notice, IsOfNoUseWhereNothingIsSaved) {
    EXPECT_THAT(describe_notice(run_with(config::Durability::none), {}, 120),
                ElementsAre(HasSubstr("warning")));
}

class SharedFolder : public testing::Test {
protected:
    SharedFolder() {
        settings_.csd.path = {root_.file("state")};
        settings_.checkpoint.path = root_.file("shared");
        fs::create_directories(settings_.csd.path.front());
    }

    const std::string& shared() const { return settings_.checkpoint.path; }
    std::string elsewhere() const { return root_.file("elsewhere"); }
    const std::string& state() const { return settings_.csd.path.back(); }
    std::vector<FoundCheckpoint> found() const { return look_for_checkpoints(settings_, {}); }

    // A checkpoint of one tile. Returns the index's path.
    static std::string save(const std::string& folder, std::int64_t step, const std::string& run,
                            const std::string& record_place) {
        const std::vector<std::vector<shard::TileRange>> ranges = {{{0, 1}}};
        const std::vector<float> values(shard::kTileElems, 1.0F);
        const auto writer = checkpoint::RankFileWriter::make(folder, step, 0, 0, ranges.front());
        writer->write({0, 1}, {values, values, values});
        checkpoint::Description about;
        about.step = about.generation = step;
        about.run = run;
        about.parameters = 100;
        about.tensors = {{.name = "a", .shape = {100}, .offset = 0}};
        return checkpoint::publish(folder, about, 0, ranges, {writer->finish()}, record_place);
    }

    ScratchFolder root_;
    config::EngineSettings settings_;
};

// The first page of a state file, or of a log.
void put_page(const std::string& path, std::uint64_t state, std::int64_t generation) {
    std::vector<std::byte> page(store::kHeaderBytes);
    store::seal_page({.generation = generation, .state = state}, page, 0, 0);
    put_bytes(path, {reinterpret_cast<const char*>(page.data()), page.size()});
}

TEST(Remains, HaveTheStepsOfTheirLogs) {
    const ScratchFolder root;
    config::EngineSettings settings;
    settings.csd.path = {root.file("state")};
    settings.csd.log = {root.file("logs")};
    const std::string state = root.file("state/rank-0.device-0.state");
    const std::string beside = store::log_of_state(state, 0);
    const std::string on_drive = root.file("logs/rank-0.device-0.state.log-5");
    fs::create_directories(root.file("state"));
    fs::create_directories(root.file("logs"));
    const auto found = [&] {
        const std::vector<FoundRemains> remains = look_for_remains(settings, {});
        return remains.empty() ? 0 : remains.front().generation;
    };
    put_page(state, 7, 0);
    EXPECT_EQ(found(), 0);
    put_page(beside, 7, 2);
    EXPECT_EQ(found(), 2);
    put_page(on_drive, 7, 3);
    EXPECT_EQ(found(), 3);
    put_page(on_drive, 8, 4);  // of another run, which shares the folder of logs
    EXPECT_EQ(found(), 2);
}

constexpr const char* kMine = "0000000000000001";
constexpr const char* kOther = "0000000000000002";

TEST_F(SharedFolder, IsNotBlockedByADamagedCheckpointOfOthers) {
    const std::string mine = save(shared(), 4, kMine, state());
    const std::string start = bytes_of(mine).substr(0, 512);
    put_bytes(shared() + "/step-99999999.h5", start + std::string(5000, 'x'));
    ASSERT_EQ(found().size(), 1U);
    EXPECT_EQ(found().front().path, mine);
    EXPECT_EQ(found().front().damage, "");
    flip_bit(mine, 600);  // its own damaged one counts
    ASSERT_EQ(found().size(), 1U);
    EXPECT_THAT(found().front().damage, HasSubstr(mine));
    // Without a record it is not known whose the other one is.
    fs::remove(state() + "/newest-checkpoint");
    EXPECT_EQ(found().size(), 2U);
}

// A crash between the index and its record leaves a record of an older step.
TEST_F(SharedFolder, CountsADamagedCheckpointThatCameAfterTheRecord) {
    save(shared(), 4, kMine, state());
    const std::string newer = save(shared(), 8, kMine, "");
    const std::string whole = bytes_of(newer);
    flip_bit(newer, whole.size() - 1);  // its words can be read
    ASSERT_FALSE(found().empty());
    EXPECT_THAT(found().front().damage, HasSubstr(newer));
    put_bytes(newer, whole.substr(0, 600));
    EXPECT_EQ(found().size(), 0U);  // nobody knows whose it is
    put_bytes(shared() + "/owner", text("nearstep checkpoints of run ", kMine, "\n"));
    ASSERT_EQ(found().size(), 1U);
    EXPECT_THAT(found().front().damage, HasSubstr(newer));
}

TEST_F(SharedFolder, TellsTheRunOfADamagedCheckpointByItsWords) {
    const std::string other = save(shared(), 4, kOther, "");
    std::string bytes = bytes_of(other);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    put_bytes(other, bytes);
    ASSERT_EQ(found().size(), 1U);
    EXPECT_THAT(found().front().damage, HasSubstr("checksum"));
    EXPECT_EQ(found().front().line.run, kOther);
}

TEST_F(SharedFolder, SaysThatTheRecordedCheckpointIsGone) {
    const std::string newest = save(shared(), 8, kMine, state());
    testing::internal::CaptureStderr();
    EXPECT_EQ(found().size(), 1U);
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    fs::remove(newest);
    testing::internal::CaptureStderr();
    EXPECT_EQ(found().size(), 0U);
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("newest_checkpoint_missing"));
}

TEST_F(SharedFolder, IsNotTheOnlyPlaceOfTheNewestCheckpoint) {
    save(shared(), 4, kMine, state());
    save(elsewhere(), 9, kOther, "");
    const std::string newest = save(elsewhere(), 8, kMine, state());
    ASSERT_EQ(found().size(), 2U);
    EXPECT_EQ(found()[0].path, newest);
    EXPECT_EQ(found()[1].step, 4);
    settings_.csd.path = {root_.file("other-drive"),
                          state()};  // rank 0's devices lie on the second
    ASSERT_EQ(found().size(), 2U);
    EXPECT_EQ(found()[0].path, newest);
    fs::remove_all(elsewhere());
    EXPECT_EQ(found().size(), 1U);
}

}  // namespace
}  // namespace nearstep::engine
