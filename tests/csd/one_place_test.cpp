// State with one place for each subgroup and a log: what is left when a write fails, and what a
// restart repeats.
#include "csd/device_fixture.hpp"
#include "csd/power_loss_job.hpp"
#include "store/power_loss.hpp"
#include "store/storage.hpp"
#include "support/test.hpp"

#include <set>

namespace nearstep::csd {
namespace {

class Reference {
public:
    explicit Reference(int logs = 1)
        : job_({.ranks = 2, .devices = 1, .folder = folder_.path(), .spare = 1, .logs = logs}) {
        job_.start();
    }
    std::uint64_t digest(std::int64_t generation) {
        while (std::ssize(digests_) <= generation) {
            if (job_.at().generation == std::ssize(digests_)) {  // the step before was not skipped
                digests_.push_back(job_.digest(job_.at().generation));
            }
            job_.step(0);
        }
        return digests_[static_cast<std::size_t>(generation)];
    }

private:
    ScratchFolder folder_;
    Job job_;
    std::vector<std::uint64_t> digests_;
};

// A job without a log has the same bits.
TEST(OnePlaceTest, UpdatesLikeStateWithTwoPlaces) {
    const ScratchFolder folder;
    Job two({.ranks = 2, .devices = 1, .folder = folder.path()});
    two.start();
    Reference one;
    Reference in_turns(3);
    for (int step = 0; step < 8; ++step) {
        const std::int64_t at = two.at().generation;
        EXPECT_EQ(two.digest(at), one.digest(at)) << step;
        EXPECT_EQ(two.digest(at), in_turns.digest(at)) << step;
        two.step(0);
    }
}

struct SpareCase {
    SmallDeviceSettings settings;
    const char* name;
};
class SparePlaces : public testing::TestWithParam<SpareCase> {};

// In memory and not, with slots that keep state, deltas, and groups of which one is skipped.
TEST_P(SparePlaces, LeaveBitsAsTheyAreAndRepeatAStep) {
    SmallDeviceSettings settings = GetParam().settings;
    const std::array runs{GroupRun{shard::kTileElems + 777, 0}, GroupRun{kParameters, 1}};
    settings.groups = GroupMap(runs);
    StepScalars scalars(test_scalars());
    scalars.of_group[1].optimizer = arith::Optimizer::lion;
    HandledDevice one(settings);
    const bool has_turns = settings.logs > 1;
    settings.spare = 0;
    HandledDevice two(settings);
    std::int64_t step = 0;
    for (; step < (has_turns ? 8 : 4); ++step) {
        scalars.is_skipped[0] = step == 2;
        scalars.random_key = static_cast<std::uint64_t>(step);
        one.take_step(step, scalars);
        two.take_step(step, scalars);
        ASSERT_EQ(one.states(step + 1), two.states(step + 1)) << step;
        ASSERT_EQ(one.vector, two.vector) << step;
    }
    two.take_step(step, scalars);
    if (has_turns) {
        EXPECT_EQ(one.device->most_unaccepted(), 0U);
        one.take_step(step, scalars);
        EXPECT_EQ(one.states(step), two.states(step));  // from the drive and logs
    } else {
        one.put_gradients(step);
        one.device->keep_update(step + 1, scalars);
        one.device->accept(step + 1);
        EXPECT_EQ(one.states(step + 1), two.states(step + 1));
        EXPECT_EQ(one.states(step), two.states(step));  // nothing was stored yet
        one.device->store_repeated(step + 1).wait();
        EXPECT_THROW(one.states(step), DamageError);
    }
    EXPECT_EQ(one.states(step + 1), two.states(step + 1));
    // An update that is given up leaves what was before.
    ++step;
    one.handler->begin(scalars, step, one.vector);
    one.handler->release(one.settings.subgroups.size() -
                         std::min<std::size_t>(1, one.device->most_unaccepted()));
    one.handler->cancel();
    one.handler->finish();
    one.device->accept(step);
    EXPECT_EQ(one.states(step), two.states(step));
    one.take_step(step, scalars);
    two.take_step(step, scalars);
    EXPECT_EQ(one.states(step + 1), two.states(step + 1));
    // A program changes all masters: both generations are there until the new one is accepted.
    ++step;
    for (std::size_t s = 0; s < one.settings.subgroups.size(); ++s) {
        for (HandledDevice* device : {&one, &two}) {
            State state(device->settings.subgroups[s].tiles.size());
            device->device->read_state(s, step, state.arrays());
            state.master[1] = 0.5F;
            device->device->write_state(s, step + 1, state.arrays());
        }
    }
    EXPECT_EQ(one.states(step), two.states(step));
    one.device->accept(step + 1);
    EXPECT_EQ(one.states(step + 1), two.states(step + 1));
    one.take_step(step + 1, scalars);
    two.take_step(step + 1, scalars);
    EXPECT_EQ(one.states(step + 2), two.states(step + 2));
}

SmallDeviceSettings with_spare(std::size_t spare, SmallDeviceSettings settings) {
    settings.spare = spare;
    return settings;
}

INSTANTIATE_TEST_SUITE_P(
    Devices, SparePlaces,
    testing::Values(
        SpareCase{with_spare(1, {.codec = "q4", .state = StateFormat::compact}), "compact"},
        SpareCase{with_spare(1, {.codec = "q4", .parent = "/dev/shm"}), "mapped"},
        SpareCase{with_spare(2, {.state = StateFormat::q8, .parent = "/dev/shm"}), "mapped_q8"},
        SpareCase{with_spare(1, {.codec = "topk",
                                 .delivery = Delivery::deltas,
                                 .parent = "/dev/shm",
                                 .subgroups = many_subgroups()}),
                  "deltas"},
        SpareCase{with_spare(3, {.read_ahead_bytes = room_for(12), .subgroups = many_subgroups()}),
                  "kept"},
        SpareCase{with_spare(1, {.sources = 1, .parent = "/dev/shm"}), "one_source"},
        SpareCase{with_spare(1, {.codec = "q4", .state = StateFormat::compact, .logs = 3}),
                  "in_turns"},
        SpareCase{with_spare(7, {.codec = "topk",
                                 .delivery = Delivery::deltas,
                                 .logs = 2,
                                 .subgroups = many_subgroups()}),
                  "deltas_in_turns"}),
    [](const auto& one) { return std::string(one.param.name); });

// Each operation of two steps, and of the restart before them, fails once. With several logs the
// restart repeats updates of several steps.
class OnePlace : public testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(OnePlace, LeavesTheNamedStepWhereverAnOperationFails) {
    const char* phase = std::get<0>(GetParam());
    const int logs = std::get<1>(GetParam());  // no structured binding: Clang 14 captures none
    Reference reference(logs);
    const ScratchFolder first;
    const auto settings_in = [logs](const std::string& folder) {
        return JobSettings{.ranks = 2, .devices = 1, .folder = folder, .spare = 1, .logs = logs};
    };
    std::int64_t done_first = 0;
    {
        Job job(settings_in(first.path()));
        job.start();
        for (int step = 0; step < 2 * logs - 1; ++step) {
            job.step(3);
        }
        done_first = job.at().generation;
    }
    std::set<std::int64_t> left;
    bool has_failed = true;
    for (int count = 1; has_failed; ++count) {
        const ScratchFolder folder;
        fs::copy(first.path(), folder.path(), fs::copy_options::recursive);
        JobSettings settings = settings_in(folder.path());
        std::int64_t done = done_first;
        FaultPoints points(text("count=", count, " action=fail phase=", phase), 0);
        store::FaultyStorage storage(points);
        settings.storage = &storage;
        has_failed = false;
        try {
            Job job(settings);
            job.go_on_from(job.offered().front());
            for (int step = 0; step < 2; ++step) {
                job.step(static_cast<std::uint64_t>(count));
                ++done;
            }
        } catch (const IoError&) {
            has_failed = true;
        }
        settings.storage = nullptr;
        Job again(settings);
        const store::Commit newest = again.offered().front();
        ASSERT_GE(newest.generation, done) << count;
        ASSERT_LE(newest.generation, done + 1) << count;
        left.insert(newest.generation);
        ASSERT_EQ(again.digest(newest.generation), reference.digest(newest.generation)) << count;
        again.go_on_from(newest);
        again.step(1);
        ASSERT_EQ(again.digest(newest.generation + 1), reference.digest(newest.generation + 1))
            << count;
        ASSERT_LT(count, 200);
    }
    EXPECT_GE(left.size(), 2U);  // the steps were cut at different places
}

INSTANTIATE_TEST_SUITE_P(Phases, OnePlace,
                         testing::Combine(testing::Values("mid_write", "before_flush",
                                                          "after_flush", "before_rename"),
                                          testing::Values(1, 3)),
                         [](const auto& one) {
                             const bool has_turns = std::get<int>(one.param) > 1;
                             return text(std::get<const char*>(one.param),
                                         has_turns ? "_in_turns" : "");
                         });

// Masters that a program changes lie in lent places until these are given back.
class ChangedMasters : public testing::TestWithParam<int> {};

TEST_P(ChangedMasters, StayWhereverAWriteFails) {
    std::array<std::uint64_t, 3> digests = {};
    std::set<std::int64_t> left;
    for (int count = 0;; ++count) {
        const ScratchFolder folder;
        JobSettings settings{
            .ranks = 1, .devices = 1, .folder = folder.path(), .spare = 1, .logs = GetParam()};
        {
            Job job(settings);
            job.start();
            job.step(0);
            digests[1] = job.digest(1);
            if (count == 0) {
                job.change_masters();
                digests[2] = job.digest(2);
                continue;
            }
        }
        FaultPoints points(text("count=", count, " action=fail phase=mid_write"), 0);
        store::FaultyStorage storage(points);
        settings.storage = &storage;
        bool has_failed = false;
        try {
            Job job(settings);
            job.go_on_from(job.offered().front());
            job.change_masters();
        } catch (const IoError&) {
            has_failed = true;
        }
        settings.storage = nullptr;
        Job again(settings);
        const std::int64_t newest = again.offered().front().generation;
        ASSERT_EQ(again.digest(newest), digests.at(static_cast<std::size_t>(newest))) << count;
        if (!has_failed) {
            break;
        }
        left.insert(newest);
        ASSERT_LT(count, 60);
    }
    EXPECT_THAT(left, testing::ElementsAre(1, 2));
}

INSTANTIATE_TEST_SUITE_P(Logs, ChangedMasters, testing::Values(1, 3));

// The digests after a step, and after masters were changed.
std::array<std::uint64_t, 2> changed_digests() {
    const ScratchFolder folder;
    Job job({.ranks = 1, .devices = 1, .folder = folder.path(), .spare = 1, .logs = 3});
    job.start();
    job.step(0);
    std::array<std::uint64_t, 2> digests = {job.digest(1), 0};
    job.change_masters();
    digests[1] = job.digest(2);
    return digests;
}

// The lent places are given back at once, so what moved out of them must be flushed before. What is
// whole there must not be hidden by a header whose payload was lost.
TEST(ChangedMastersTest, StayWhenThePowerIsCut) {
    constexpr std::uint64_t kCrashes = 16;  // of each cut
    constexpr int kLossesOfAll = 16;        // after the last operation
    const std::array<std::uint64_t, 2> digests = changed_digests();
    std::set<std::int64_t> left;
    int whole = 0;
    for (std::uint64_t crash = 0; whole < kLossesOfAll; ++crash) {
        const auto cut = static_cast<std::int64_t>(crash / kCrashes);
        const ScratchFolder folder;
        store::PowerLossStorage storage(4096);
        const JobSettings settings{.ranks = 1,
                                   .devices = 1,
                                   .folder = folder.path(),
                                   .storage = &storage,
                                   .spare = 1,
                                   .logs = 3};
        {
            Job job(settings);
            job.start();
            job.step(0);
            storage.cut_after(cut);
            try {
                job.change_masters();
                ++whole;
            } catch (const IoError&) {
                ASSERT_FALSE(storage.has_power());
            }
        }
        storage.crash(crash);
        Job again(settings);
        const std::int64_t newest = again.offered().front().generation;
        ASSERT_TRUE(newest == 2 || whole == 0) << crash;
        ASSERT_EQ(again.digest(newest), digests.at(static_cast<std::size_t>(newest - 1))) << crash;
        left.insert(newest);
        ASSERT_LT(crash, 1600);
    }
    EXPECT_THAT(left, testing::ElementsAre(1, 2));
}

// Cuts the first step when it is named and none of its state is stored. Returns the folder.
std::string cut_first_step(const ScratchFolder& scratch) {
    for (int count = 1; count < 100; ++count) {
        std::string folder = scratch.file(text("cut-", count));
        fs::create_directories(folder);
        JobSettings settings{.ranks = 1, .devices = 1, .folder = folder, .spare = 1};
        {
            Job job(settings);
            job.start();
        }
        FaultPoints points(text("count=", count, " action=fail phase=mid_write"), 0);
        store::FaultyStorage storage(points);
        settings.storage = &storage;
        Job job(settings);
        EXPECT_THROW(
            {
                job.go_on_from(job.offered().front());
                job.step(0);
            },
            IoError);
        if (job.offered().front().generation == 1) {
            return folder;
        }
    }
    return "";
}

TEST(OnePlaceTest, RepeatsAStepFromItsLogAlone) {
    const ScratchFolder scratch;
    const std::string cut = cut_first_step(scratch);
    ASSERT_FALSE(cut.empty());
    const auto copy = [&](const std::string& name) {
        fs::copy(cut, scratch.file(name));
        return JobSettings{.ranks = 1, .devices = 1, .folder = scratch.file(name), .spare = 1};
    };
    const std::string log = "/rank-0.device-0.state.log-0";
    {
        Job whole(copy("whole"));
        EXPECT_NO_THROW(whole.digest(1));
    }
    // The header of the log, its directory, and gradients.
    for (const std::int64_t at : {100, 4096 + 2, 8192 + 7}) {
        const JobSettings settings = copy(text("flipped-", at));
        flip_bit(settings.folder + log, at);
        Job job(settings);
        EXPECT_THROW(job.digest(1), DamageError) << at;
        EXPECT_NO_THROW(job.digest(0)) << at;
    }
    const JobSettings settings = copy("absent");
    fs::remove(settings.folder + log);
    Job job(settings);
    EXPECT_THROW(job.digest(1), DamageError);
    EXPECT_NO_THROW(job.digest(0));
}

}  // namespace
}  // namespace nearstep::csd
