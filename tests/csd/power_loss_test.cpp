// Cuts power at random moments of a run. Every rank must keep the last step or the one before.
#include "store/power_loss.hpp"

#include "csd/power_loss_job.hpp"
#include "support/test.hpp"

namespace nearstep::csd {
namespace {

// The simulation needs no drive, and memory is faster.
std::string memory_folder() {
    return std::filesystem::is_directory("/dev/shm") ? "/dev/shm/" : testing::TempDir();
}

// The digests of a job without power cuts.
class UndisturbedJob {
public:
    explicit UndisturbedJob(JobSettings settings) {
        settings.folder = folder_.path();
        settings.storage = nullptr;
        job_ = std::make_unique<Job>(settings);
        job_->start();
        digests_.push_back(job_->digest(0));
    }
    std::uint64_t digest(std::int64_t generation) {
        while (job_->at().generation < generation) {
            job_->step(0);
            if (job_->at().generation == static_cast<std::int64_t>(digests_.size())) {
                digests_.push_back(job_->digest(job_->at().generation));
            }
        }
        return digests_.at(static_cast<std::size_t>(generation));
    }

private:
    ScratchFolder folder_{memory_folder()};
    std::unique_ptr<Job> job_;
    std::vector<std::uint64_t> digests_;
};

// Repeats runs and power cuts on the same files.
class Trial {
public:
    Trial(const JobSettings& settings, std::size_t sector_bytes)
        : settings_(settings), storage_(sector_bytes), reference_(settings) {
        settings_.folder = folder_.path();
        settings_.storage = &storage_;
    }

    store::PowerLossStorage& storage() { return storage_; }
    std::int64_t steps_made() const { return steps_made_; }

    // One schedule: continues, or starts anew, until the power is cut. Returns what is wrong with
    // the result or with the state found at the start; nullopt if nothing is.
    std::optional<std::string> run_until_cut(std::uint64_t seed, bool is_anew) {
        try {
            run(seed, is_anew);
        } catch (const IoError& error) {
            if (storage_.has_power()) {
                return error.what();
            }
        }
        storage_.crash(seed);
        try {
            Job job(settings_);
            return fault_in(job);
        } catch (const IoError& error) {
            return error.what();
        }
    }

private:
    // Ends with the error that the power cut causes.
    void run(std::uint64_t seed, bool is_anew) {
        Job job(settings_);
        const std::vector<store::Commit> offered =
            is_anew ? std::vector<store::Commit>() : job.offered();
        // Per step and rank: two writes and a flush per device, five operations on the program's
        // file and four on the manifest. The cut comes within the first four steps.
        const std::int64_t of_step = settings_.ranks * (3 * settings_.devices + 9);
        storage_.cut_after(static_cast<std::int64_t>(random_bits(seed, 1, 0) %
                                                     static_cast<std::uint64_t>(4 * of_step)));
        replaced_.reset();
        if (offered.empty()) {
            const std::vector<store::Commit> before = job.offered();
            replaced_ = before.empty() ? std::nullopt : std::optional(before.front());
            committed_ = -1;
            job.start();
        } else {
            job.go_on_from(offered.front());
        }
        for (std::uint64_t i = 0;; ++i) {
            committed_ = job.at().step;
            job.step(random_bits(seed, 2, i));
            ++steps_made_;
        }
    }

    std::optional<std::string> fault_in(Job& job) {
        const std::vector<store::Commit> offered = job.offered();
        if (offered.empty()) {
            return committed_ < 0 ? std::nullopt
                                  : std::optional(text("step ", committed_, " is gone"));
        }
        const store::Commit& newest = offered.front();
        // If a new start was cut before all ranks gave up the old steps, those are intact.
        const bool is_as_before = committed_ < 0 && replaced_ == newest;
        if (!is_as_before && (newest.step < committed_ || newest.step > committed_ + 1)) {
            return text("step ", newest.step, " is offered after step ", committed_);
        }
        if (newest.generation != newest.step - newest.step / 5) {
            return text("step ", newest.step, " has generation ", newest.generation);
        }
        if (job.digest(newest.generation) != reference_.digest(newest.generation)) {
            return text("step ", newest.step, " has the wrong state");
        }
        if (!job.has_programs(newest.step)) {
            return text("step ", newest.step, " lacks what its programs kept");
        }
        return std::nullopt;
    }

    ScratchFolder folder_{memory_folder()};
    JobSettings settings_;
    store::PowerLossStorage storage_;
    UndisturbedJob reference_;
    std::int64_t committed_ = -1;            // the last step that all ranks committed
    std::optional<store::Commit> replaced_;  // the newest step that a new start gives up
    std::int64_t steps_made_ = 0;
};

struct PowerLossCase {
    int ranks;
    int devices;
    HandlerKind handler;
    std::size_t sector_bytes;
    int logs = 0;  // several: see JobSettings
};

// Per case, of six cases. tests/run --long sets NEARSTEP_LONG for the full number.
const int kSchedules = std::getenv("NEARSTEP_LONG") != nullptr ? 300 : 75;
constexpr int kSchedulesOfARun = 25;  // before one starts anew

class PowerLoss : public testing::TestWithParam<PowerLossCase> {};

TEST_P(PowerLoss, LeavesTheLastStepOrTheOneBeforeOnAllRanks) {
    const PowerLossCase& one = GetParam();
    Trial trial({.ranks = one.ranks,
                 .devices = one.devices,
                 .handler = one.handler,
                 .spare = one.logs > 0 ? std::size_t{1} : 0,
                 .logs = std::max(one.logs, 1)},
                one.sector_bytes);
    for (int i = 0; i < kSchedules; ++i) {
        const auto fault =
            trial.run_until_cut(static_cast<std::uint64_t>(i), i % kSchedulesOfARun == 0);
        ASSERT_EQ(fault, std::nullopt) << "schedule " << i << ": " << *fault;
    }
    // The schedules did real work.
    EXPECT_GT(trial.steps_made(), kSchedules / 2);
    EXPECT_GT(trial.storage().sectors_lost(), static_cast<std::size_t>(kSchedules));
}

INSTANTIATE_TEST_SUITE_P(Jobs, PowerLoss,
                         testing::Values(PowerLossCase{1, 2, HandlerKind::naive, 4096},
                                         PowerLossCase{1, 2, HandlerKind::overlapped, 512},
                                         PowerLossCase{3, 1, HandlerKind::naive, 512},
                                         PowerLossCase{3, 1, HandlerKind::overlapped, 4096},
                                         PowerLossCase{1, 2, HandlerKind::overlapped, 4096, 3},
                                         PowerLossCase{3, 1, HandlerKind::naive, 512, 2}));

TEST(PowerLossTest, FindsOutADriveThatLiesAboutFlushes) {
    Trial trial({.ranks = 1, .devices = 2}, 4096);
    trial.storage().lie_about_flushes();
    int faults = 0;
    for (int i = 0; i < 20; ++i) {
        faults += trial.run_until_cut(static_cast<std::uint64_t>(i), true) ? 1 : 0;
    }
    EXPECT_GT(faults, 0);
}

TEST(CommitTest, WantsTheStateFlushedBeforeItIsNamed) {
    const ScratchFolder folder;
    StateCommit log(folder.file("rank-0.manifest"));
    EXPECT_THROW(log.publish({.step = 1}), ContractError);
    log.prepare({});
    log.publish({.step = 1});
    EXPECT_THROW(log.publish({.step = 2}), ContractError);
    EXPECT_EQ(log.read()->commits.size(), 1U);
}

// A step flushes two devices, the program's file, then the manifest. Whichever fails, the manifest
// keeps the step before.
TEST(CommitTest, NamesNoStepIfAFlushFailed) {
    constexpr int kFlushesBefore = 3;  // a restart writes no program's file
    constexpr int kFlushes = 4;
    for (int flush = 1; flush <= kFlushes + 1; ++flush) {
        const ScratchFolder folder;
        JobSettings settings{.ranks = 1, .devices = 2, .folder = folder.path()};
        {
            Job job(settings);
            job.start();
        }
        FaultPoints points(
            text("count=", kFlushesBefore + flush, " action=fail phase=before_flush"), 0);
        store::FaultyStorage storage(points);
        settings.storage = &storage;
        Job job(settings);
        job.go_on_from(job.offered().front());  // flushes as a step does
        if (flush > kFlushes) {
            job.step(0);
        } else {
            EXPECT_THROW(job.step(0), IoError) << flush;
        }
        EXPECT_EQ(job.offered().front().step, flush > kFlushes ? 1 : 0) << flush;
    }
}

// `action` makes one operation fail in each phase. The message must give `reason`.
void expect_survival(const std::string& action, const std::string& reason) {
    const ScratchFolder folder;
    for (const std::string phase : {"mid_write", "before_flush", "mid_read", "before_rename"}) {
        JobSettings settings{.ranks = 3, .devices = 1, .folder = folder.path()};
        std::uint64_t digest = 0;
        {
            Job job(settings);
            job.start();
            job.step(0);
            job.step(0);
            digest = job.digest(2);
        }
        FaultPoints points(text("count=5 action=", action, " phase=", phase), 0);
        store::FaultyStorage storage(points);
        settings.storage = &storage;
        {
            Job job(settings);
            const std::string message = message_of<IoError>([&] {
                job.go_on_from(job.offered().front());
                job.step(0);
                job.step(0);
            });
            EXPECT_THAT(message, testing::HasSubstr(reason)) << phase;
            EXPECT_THAT(message, testing::HasSubstr(folder.path() + "/rank-")) << phase;
        }
        Job job(settings);
        const store::Commit newest = job.offered().front();
        EXPECT_GE(newest.generation, 2) << phase;
        EXPECT_LE(newest.generation, 3) << phase;
        EXPECT_NO_THROW(job.digest(newest.generation)) << phase;
        if (newest.generation == 2) {
            EXPECT_EQ(job.digest(2), digest) << phase;
        }
    }
}

TEST(CommitTest, SurvivesAnOperationThatFails) { expect_survival("fail", "Input/output error"); }

TEST(CommitTest, SurvivesAFullDisk) { expect_survival("full", "No space left on device"); }

}  // namespace
}  // namespace nearstep::csd
