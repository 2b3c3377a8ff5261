// Tests what decide() says of single findings.
#include "engine/restart/programs.hpp"
#include "engine/restart_cases.hpp"

namespace nearstep::engine {
namespace {

using namespace cases;

TEST(DecideTest, NamesWhatIsMissing) {
    const Decision decision = decide(found_of({.traces = {Trace::whole, Trace::nothing},
                                               .kept = Kept::older,
                                               .flag = Flag::resume_if_any}));
    EXPECT_EQ(decision.action, Action::refuse);
    EXPECT_EQ(decision.refusal.reason, Reason::step_not_whole);
    EXPECT_EQ(decision.refusal.step, kNewest);
    EXPECT_EQ(decision.refusal.run, "line");
    ASSERT_THAT(decision.refusal.missing, SizeIs(1));
    EXPECT_EQ(decision.refusal.missing[0].rank, 1);
    EXPECT_EQ(decision.refusal.missing[0].name, "");
    EXPECT_EQ(decision.refusal.missing[0].place, "host0 p1/rank-1.manifest");
    EXPECT_EQ(decision.refusal.checkpoint, "checkpoints/one.h5");
    EXPECT_THAT(decision.refusal.remedies,
                ElementsAre(Remedy::bring_back, Remedy::from, Remedy::fresh));
}

TEST(DecideTest, LeavesAStepToALostNodeOnlyWhereNobodyIsThereToAsk) {
    for (const Flag flag : {Flag::resume, Flag::resume_if_any}) {
        Findings found =
            found_of({.traces = {Trace::whole, Trace::nothing}, .kept = Kept::older, .flag = flag});
        found.manifests[0].manifest->places[1] = "host9 p1";
        const Decision decision = decide(found);
        if (flag == Flag::resume) {
            EXPECT_EQ(decision.action, Action::refuse);
            continue;
        }
        EXPECT_EQ(decision.action, Action::load_checkpoint);
        EXPECT_EQ(decision.replaces, "first");
        EXPECT_EQ(decision.set, 1);
        ASSERT_FALSE(decision.notes.empty());
        EXPECT_THAT(decision.notes.back(), HasSubstr("Step 7 is given up"));
        EXPECT_TRUE(decision.begins_line);
    }
}

// The run went on without the lost node, from the checkpoint of step 3. Now the node is back.
TEST(DecideTest, GoesOnFromANewerLineWhenTheLostNodeIsBack) {
    Findings lost = found_of({.traces = {Trace::whole, Trace::nothing},
                              .kept = Kept::older,
                              .flag = Flag::resume_if_any});
    lost.manifests[0].manifest->places[1] = "host9 p1";
    const Decision without = decide(lost);
    Findings found =
        found_of({.traces = {Trace::nothing, Trace::whole}, .flag = Flag::resume_if_any});
    for (std::size_t rank = 0; rank < 2; ++rank) {
        FoundManifest one{.path = found.ranks[rank].manifests[1],
                          .rank = static_cast<int>(rank),
                          .set = 1,
                          .manifest = manifest_of(Trace::whole, 2),
                          .files = found.ranks[rank].files[1]};
        one.manifest->state = "second";
        one.manifest->line =
            without.begins_line ? store::branch_off(without.line, 3, "without") : without.line;
        one.manifest->commits = {at(5), at(4)};
        one.manifest->files = {text("rank-", rank, ".device-0.set-1.state")};
        found.manifests.push_back(one);
    }
    const Decision decision = decide(found);
    EXPECT_EQ(decision.action, Action::resume_state);
    EXPECT_EQ(decision.line.run, "without");
    EXPECT_EQ(decision.steps.front().commit.step, 5);
}

// Rank 0 has published the new state's manifest, rank 1 has not.
TEST(DecideTest, TakesAStateThatReplacesAnotherOnlyWhenAllRanksHaveIt) {
    Findings found = found_of({.traces = {Trace::whole, Trace::whole}, .flag = Flag::resume});
    for (int rank = 0; rank < 2; ++rank) {
        FoundManifest staged = found.manifests[static_cast<std::size_t>(rank)];
        staged.path = found.ranks[static_cast<std::size_t>(rank)].manifests[1];
        staged.files = found.ranks[static_cast<std::size_t>(rank)].files[1];
        staged.set = 1;
        staged.manifest->state = "second";
        staged.manifest->replaces = "first";
        staged.manifest->line = store::branch_off(kLine, 3, "back");
        staged.manifest->commits = {at(3)};
        found.manifests.push_back(staged);
        const Decision decision = decide(found);
        EXPECT_EQ(decision.action, Action::resume_state);
        EXPECT_EQ(decision.set, rank);
        EXPECT_EQ(decision.line.run, rank == 0 ? "line" : "back");
        EXPECT_EQ(decision.steps.front().commit.step, rank == 0 ? kNewest : 3);
    }
}

TEST(DecideTest, RefusesAStateThatLacksAFileAndReadsOneThatLiesElsewhere) {
    Findings found = found_of({.traces = {Trace::whole, Trace::whole}, .flag = Flag::resume});
    found.manifests[1].files = {""};
    const Decision decision = decide(found);
    EXPECT_EQ(decision.action, Action::refuse);
    ASSERT_THAT(decision.refusal.missing, SizeIs(1));
    EXPECT_EQ(decision.refusal.missing[0].rank, 1);
    EXPECT_EQ(decision.refusal.missing[0].name, "rank-1.device-0.state");
    found.manifests[1].files = {"p2/rank-1.device-0.state"};
    EXPECT_EQ(decide(found).action, Action::read_state);
}

TEST(DecideTest, GoesOnFromItsOwnStepsWhenAJobWithFromComesBack) {
    Findings found = found_of({.traces = {Trace::whole}, .flag = Flag::resume_if_any});
    found.named = FoundCheckpoint{.path = "copy.h5", .step = 2, .line = kLine, .model = "model"};
    EXPECT_EQ(decide(found).action, Action::load_checkpoint);
    found.manifests[0].manifest->line = store::branch_off(kLine, 2, "mine");
    EXPECT_EQ(decide(found).action, Action::resume_state);
    EXPECT_EQ(decide(found).line.run, "mine");
    found.request.kind = Flag::from;
    EXPECT_EQ(decide(found).action, Action::load_checkpoint);
}

TEST(DecideTest, GoesOnOnlyWithTheSameMomentsIfTheyAreNamed) {
    Findings found = found_of({.traces = {Trace::whole}, .flag = Flag::resume});
    found.model = "model, moments of Lion";
    EXPECT_EQ(decide(found).action, Action::resume_state);  // of an earlier version
    found.manifests[0].manifest->model = "model, moments of Adam";
    EXPECT_EQ(decide(found).action, Action::refuse);
    EXPECT_EQ(decide(found).refusal.reason, Reason::other_model_of_state);
    EXPECT_EQ(decide(found).refusal.detail, "moments of Adam, not moments of Lion");
}

TEST(DecideTest, TakesAFirstCommitThatNotAllRanksCameToForNoStep) {
    Findings found =
        found_of({.traces = {Trace::whole, Trace::whole}, .flag = Flag::resume_if_any});
    found.manifests[0].manifest->commits = {at(0)};
    found.manifests[1].manifest->commits.clear();
    EXPECT_EQ(decide(found).action, Action::start_anew);
    found.manifests[0].manifest->commits = {at(3)};
    found.checkpoints = checkpoints_of(Kept::older);
    EXPECT_EQ(decide(found).action, Action::load_checkpoint);
}

// Two starts were killed before their first commit; the second had claimed rank 0's folder only.
TEST(DecideTest, TakesRunsThatHaveNotBegunForNone) {
    Findings found =
        found_of({.traces = {Trace::other_line, Trace::whole}, .flag = Flag::resume_if_any});
    EXPECT_EQ(decide(found).refusal.reason, Reason::several_runs);
    for (FoundManifest& one : found.manifests) {
        one.manifest->commits.clear();
    }
    EXPECT_EQ(decide(found).action, Action::start_anew);
    found.request.kind = Flag::resume;
    EXPECT_EQ(decide(found).refusal.reason, Reason::nothing_to_resume);
    // A run with steps is not hidden by one without.
    found.manifests[1].manifest->commits = {at(3)};
    EXPECT_EQ(decide(found).refusal.reason, Reason::step_not_whole);
    EXPECT_EQ(decide(found).refusal.step, 3);
}

TEST(DecideTest, TakesAManifestWithoutStepsForNoStep) {
    Findings found =
        found_of({.traces = {Trace::whole, Trace::nothing}, .flag = Flag::resume_if_any});
    found.manifests[0].manifest->commits.clear();
    EXPECT_EQ(decide(found).action, Action::start_anew);
    found.request.kind = Flag::resume;
    EXPECT_EQ(decide(found).refusal.reason, Reason::nothing_to_resume);
    // Another run's checkpoints do not count.
    found.request.kind = Flag::resume_if_any;
    found.checkpoints = checkpoints_of(Kept::other_line);
    EXPECT_EQ(decide(found).action, Action::refuse);
    found.checkpoints.push_back(checkpoints_of(Kept::older).front());
    EXPECT_EQ(decide(found).action, Action::load_checkpoint);
    EXPECT_EQ(decide(found).checkpoint_step, 3);
}

TEST(DecideTest, AdvisesToRemoveADamagedCheckpointOnlyWhereAnOlderStepIsLeft) {
    Findings found =
        found_of({.traces = {Trace::whole}, .kept = Kept::damaged, .flag = Flag::resume});
    EXPECT_THAT(decide(found).refusal.remedies, ElementsAre(Remedy::remove, Remedy::fresh));
    found.manifests[0].manifest->commits.clear();
    EXPECT_EQ(decide(found).refusal.reason, Reason::damaged_newer_checkpoint);
    EXPECT_THAT(decide(found).refusal.remedies, ElementsAre(Remedy::from, Remedy::fresh));
}

TEST(DecideTest, BeginsNothingAnewWhereAJobMayHaveLostItsSteps) {
    for (const Flag flag : {Flag::resume_if_any, Flag::from}) {
        Findings found = found_of({.traces = {}, .flag = flag});
        found.request.kind = Flag::resume_if_any;
        EXPECT_NE(decide(found).action, Action::refuse);
        found.job.may_have_begun = true;
        EXPECT_EQ(decide(found).refusal.reason, Reason::lost_all);
    }
    Findings found = found_of({.traces = {}, .flag = Flag::none});
    found.job.may_have_begun = true;
    EXPECT_EQ(decide(found).action, Action::start_anew);
    // All its manifests are there and list no step, so there is none to lose.
    found = found_of({.traces = {Trace::whole}, .flag = Flag::resume_if_any});
    found.job.may_have_begun = true;
    EXPECT_EQ(decide(found).action, Action::resume_state);
    found.manifests[0].manifest->commits.clear();
    EXPECT_EQ(decide(found).action, Action::start_anew);
}

// A job that Slurm started again on another host, where an unfinished run of another job lies.
Findings moved_job() {
    Findings found = found_of({.traces = {Trace::other_line}, .flag = Flag::resume_if_any});
    found.job = {.may_have_begun = true, .ids = {"line"}};
    found.manifests[0].is_of_other_job = true;
    found.checkpoints = checkpoints_of(Kept::older);
    return found;
}

TEST(DecideTest, GoesOnWithTheRunsOfItsJobAlone) {
    Findings found = moved_job();
    EXPECT_EQ(decide(found).refusal.reason, Reason::run_of_other_job);
    EXPECT_EQ(decide(found).refusal.checkpoint, found.checkpoints[0].path);
    found.request.is_fresh_job = true;  // so that what others left is given up
    EXPECT_EQ(decide(found).action, Action::load_checkpoint);
    EXPECT_EQ(decide(found).checkpoint, found.checkpoints[0].path);
    EXPECT_EQ(decide(found).set, 1);  // beside the other run until that step is durable
    found.checkpoints[0].is_of_other_job = true;
    EXPECT_EQ(decide(found).refusal.reason, Reason::lost_all);
    EXPECT_EQ(decide(found).refusal.checkpoint, "");
    found = moved_job();
    found.manifests[0].manifest->steps = found.manifests[0].manifest->commits.front().step;
    EXPECT_EQ(decide(found).action, Action::load_checkpoint);  // that one is finished
}

TEST(DecideTest, StartsAJobAnewOnceMoreIfItHasBegunNothing) {
    Findings found = found_of({.traces = {Trace::whole}, .flag = Flag::resume_if_any});
    found.request.is_fresh_job = true;
    EXPECT_EQ(decide(found).action, Action::start_anew);
    found.job = {.may_have_begun = true, .ids = {"line"}};
    EXPECT_EQ(decide(found).action, Action::resume_state);
    found.job.ids.clear();
    EXPECT_EQ(decide(found).refusal.reason, Reason::unknown_run);
}

TEST(DecideTest, AdvisesNoCheckpointOfAnotherRun) {
    Findings found = found_of({.traces = {Trace::whole, Trace::nothing}, .flag = Flag::resume});
    found.checkpoints = checkpoints_of(Kept::other_line);
    EXPECT_EQ(decide(found).refusal.reason, Reason::step_not_whole);
    EXPECT_EQ(decide(found).refusal.checkpoint, "");
    const FoundCheckpoint own = checkpoints_of(Kept::older).front();
    found.checkpoints.push_back(own);
    EXPECT_EQ(decide(found).refusal.checkpoint, own.path);
    // Nothing tells which run the state was of.
    found.manifests =
        found_of({.traces = {Trace::damaged, Trace::damaged}, .flag = Flag::resume}).manifests;
    EXPECT_EQ(decide(found).refusal.reason, Reason::several_runs);
    EXPECT_EQ(decide(found).refusal.checkpoint, "");
    found.checkpoints.back().state_folders = {found.state_folder};
    EXPECT_EQ(decide(found).refusal.checkpoint, own.path);
}

// Two ranks that compute, whose programs kept something at each of these steps.
Findings found_with_programs(const std::vector<store::Commit>& commits,
                             const std::vector<std::int64_t>& kept) {
    Findings found = found_of({.traces = {Trace::whole, Trace::whole}, .flag = Flag::resume});
    found.program = ProgramUse::needed;
    found.computing = 2;
    for (FoundManifest& one : found.manifests) {
        one.manifest->commits = commits;
        for (const std::int64_t step : kept) {
            one.manifest->programs.push_back({.step = step, .bytes = 1});
            one.programs.push_back(text("kept at ", step));
        }
    }
    return found;
}

std::int64_t step_of_program(const Findings& found, const Decision& decision, std::size_t rank) {
    const ProgramSource source = decision.steps.front().programs.of_ranks[rank].value();
    return found.manifests[source.manifest].manifest->programs[source.record].step;
}

TEST(GoBackTo, TakesWhatTheProgramsKeptAtThatStep) {
    const Findings found = found_with_programs({at(7), at(6)}, {7, 6});
    Decision decision = decide(found);
    ASSERT_EQ(decision.action, Action::resume_state);
    ASSERT_THAT(decision.steps, SizeIs(2));
    EXPECT_EQ(step_of_program(found, decision, 1), 7);
    EXPECT_TRUE(go_back_to(6, found, decision));
    ASSERT_THAT(decision.steps, SizeIs(1));
    EXPECT_EQ(decision.steps.front().commit.step, 6);
    EXPECT_EQ(step_of_program(found, decision, 0), 6);
    EXPECT_EQ(step_of_program(found, decision, 1), 6);
    EXPECT_FALSE(go_back_to(5, found, decision = decide(found)));
    EXPECT_FALSE(go_back_to(8, found, decision = decide(found)));
}

TEST(GoBackTo, TakesTheSameStateAtASkippedStepWithWhatWasKeptThere) {
    const std::vector<store::Commit> skipped = {{.step = 7, .generation = 5}, at(4)};
    for (const bool is_whole : {true, false}) {
        Findings found = found_with_programs(skipped, {7, 6, 4});
        found.manifests[1].programs[1] = is_whole ? "kept at 6" : "";
        Decision decision = decide(found);
        ASSERT_EQ(decision.action, Action::resume_state);
        EXPECT_EQ(go_back_to(6, found, decision), is_whole);
        EXPECT_EQ(decision.steps.front().commit.generation, 5);
        if (is_whole) {
            EXPECT_EQ(step_of_program(found, decision, 0), 6);
        }
    }
}

}  // namespace
}  // namespace nearstep::engine
