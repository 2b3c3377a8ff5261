// Checks decide() on every combination of a few findings against rules that always hold.
#include "base/wording.hpp"
#include "engine/restart/decide.hpp"
#include "support/test.hpp"

namespace nearstep::engine {
namespace {

using store::Lineage;
using testing::Contains;

// The run itself, an unrelated run, and a run that branched off it at step 4.
const Lineage kLine{.run = "line"};
const Lineage kOther{.run = "other"};
const Lineage kBranch{.run = "branch", .parents = {{.run = "line", .step = 4}}};

constexpr std::int64_t kNewest = 7;

store::Commit at(std::int64_t step) { return {.step = step, .generation = step}; }

enum class Trace {
    remains,
    nothing,
    whole,
    older_by_one,
    other_line,
    other_layout,
    damaged,
    refilled,
    branched
};
constexpr std::array kTraces = {Trace::remains,      Trace::nothing,    Trace::whole,
                                Trace::older_by_one, Trace::other_line, Trace::other_layout,
                                Trace::damaged,      Trace::refilled,   Trace::branched};

enum class Kept { none, older, equal, newer, other_line, given_up, damaged };
constexpr std::array kKept = {Kept::none,       Kept::older,    Kept::equal,  Kept::newer,
                              Kept::other_line, Kept::given_up, Kept::damaged};

using Flag = Wish::Kind;
constexpr std::array kFlags = {Flag::none, Flag::resume, Flag::resume_if_any, Flag::from,
                               Flag::fresh};

std::string layout_of(int ranks, const std::string& rest = "") {
    return text("ranks=", ranks, " devices=1", rest);
}

store::Manifest manifest_of(Trace trace, int ranks) {
    store::Manifest manifest{.line = kLine,
                             .model = "model",
                             .layout = layout_of(ranks),
                             .steps = 40,
                             .state = "first",
                             .commits = {at(kNewest), at(kNewest - 1)}};
    for (int rank = 0; rank < ranks; ++rank) {
        manifest.places.push_back(text("host0 p", rank, "/rank-", rank, ".manifest"));
    }
    switch (trace) {
        case Trace::older_by_one:
            manifest.commits = {at(kNewest - 1), at(kNewest - 2)};
            break;
        case Trace::other_line:
            manifest.line = kOther;
            manifest.state = "others";
            break;
        case Trace::other_layout:
            manifest.layout = layout_of(ranks, " subgroup_tiles=9");
            break;
        case Trace::refilled:
            manifest.state = "second";
            break;
        case Trace::branched:
            manifest.line = kBranch;
            manifest.state = "branched";
            manifest.commits = {at(6), at(5)};
            break;
        default:
            break;
    }
    return manifest;
}

std::vector<FoundCheckpoint> checkpoints_of(Kept kept) {
    FoundCheckpoint one{
        .path = "checkpoints/one.h5", .step = 3, .steps = 40, .line = kLine, .model = "model"};
    switch (kept) {
        case Kept::none:
            return {};
        case Kept::older:
            break;
        case Kept::equal:
            one.step = kNewest;
            break;
        case Kept::newer:
            one.step = kNewest + 5;
            break;
        case Kept::other_line:
            one.step = kNewest + 5;
            one.line = kOther;
            break;
        case Kept::given_up:  // after the branch point
            one.step = 6;
            one.line = {.run = "branch of branch", .parents = {{.run = "line", .step = 1}}};
            break;
        case Kept::damaged:
            one.step = kNewest + 5;
            one.damage = "The checkpoint is damaged.";
            break;
    }
    one.generation = one.step;
    return {one};
}

struct Case {
    std::vector<Trace> traces;
    Kept kept = Kept::none;
    Flag flag = Flag::none;
};

Found found_of(const Case& one) {
    Found found{.hosts = {"host0"},
                .checkpoints = checkpoints_of(one.kept),
                .wish = {.kind = one.flag},
                .model = "model",
                .state_folder = "p0",
                .checkpoint_folder = "checkpoints"};
    const auto ranks = static_cast<int>(one.traces.size());
    for (int rank = 0; rank < ranks; ++rank) {
        const std::string path = text("p", rank, "/rank-", rank);
        found.ranks.push_back({.node = 0,
                               .manifests = {path + ".manifest", path + ".set-1.manifest"},
                               .layout = layout_of(ranks),
                               .files = {std::vector{path + ".device-0.state"},
                                         std::vector{path + ".device-0.set-1.state"}}});
        const Trace trace = one.traces[static_cast<std::size_t>(rank)];
        if (trace == Trace::remains) {
            found.remains.push_back({.path = path + ".device-0.state", .generation = kNewest});
        }
        if (trace == Trace::nothing || trace == Trace::remains) {
            continue;
        }
        FoundManifest manifest{.path = path + ".manifest", .rank = rank};
        if (trace == Trace::damaged) {
            manifest.damage = text("The manifest ", path, " is damaged.");
        } else {
            manifest.manifest = manifest_of(trace, ranks);
            manifest.manifest->files = {text("rank-", rank, ".device-0.state")};
            manifest.files = {path + ".device-0.state"};
        }
        found.manifests.push_back(manifest);
    }
    if (one.flag == Flag::from) {
        found.named =
            FoundCheckpoint{.path = "copy/named.h5", .step = 2, .line = kLine, .model = "model"};
    }
    return found;
}

void for_each_case(const std::function<void(const Case&)>& visit) {
    for (std::size_t ranks = 1; ranks <= 3; ++ranks) {
        std::size_t count = 1;
        for (std::size_t rank = 0; rank < ranks; ++rank) {
            count *= kTraces.size();
        }
        for (std::size_t number = 0; number < count; ++number) {
            Case one{.traces = {}};
            for (std::size_t rest = number; one.traces.size() < ranks; rest /= kTraces.size()) {
                one.traces.push_back(kTraces.at(rest % kTraces.size()));
            }
            for (const Kept kept : kKept) {
                for (const Flag flag : kFlags) {
                    one.kept = kept;
                    one.flag = flag;
                    visit(one);
                }
            }
        }
    }
}

bool has(const Case& one, Trace trace) {
    return std::count(one.traces.begin(), one.traces.end(), trace) > 0;
}

bool all_are(const Case& one, const std::set<Trace>& traces) {
    return std::all_of(one.traces.begin(), one.traces.end(),
                       [&](Trace trace) { return traces.count(trace) > 0; });
}

std::string name_of(const Case& one) {
    std::string name = "traces";
    for (const Trace trace : one.traces) {
        name += text(" ", static_cast<int>(trace));
    }
    return text(name, ", checkpoint ", static_cast<int>(one.kept), ", flag ",
                static_cast<int>(one.flag));
}

std::int64_t step_of(const Case& one, const Decision& decision) {
    if (decision.action == Action::load_checkpoint) {
        return decision.checkpoint == "copy/named.h5" ? 2 : checkpoints_of(one.kept).front().step;
    }
    return decision.commits.empty() ? -1 : decision.commits.front().step;
}

// The newest durable step of the folders' line, by rule and without decide(). A step counts if a
// checkpoint has it or a rank lists it. If ranks are one step apart, the last step does not count,
// because not all ranks reached it.
std::int64_t newest_durable(const Case& one) {
    std::int64_t state = -1;
    if (all_are(one, {Trace::whole, Trace::older_by_one}) && has(one, Trace::older_by_one)) {
        state = kNewest - 1;
    } else if (has(one, Trace::whole) || has(one, Trace::other_layout) ||
               has(one, Trace::refilled)) {
        state = kNewest;
    } else if (has(one, Trace::older_by_one)) {
        state = kNewest - 1;
    }
    if (has(one, Trace::remains)) {
        state = kNewest;
    }
    if (has(one, Trace::branched)) {
        state = 6;  // later steps of the line were given up at step 4
    }
    const bool is_on_line =
        one.kept == Kept::older ||
        ((one.kept == Kept::equal || one.kept == Kept::newer) && !has(one, Trace::branched));
    return std::max(state, is_on_line ? checkpoints_of(one.kept).front().step : -1);
}

// The sentence without a part, and how often it had the part.
std::pair<std::string, int> without(std::string sentence, const std::string& part) {
    int count = 0;
    for (auto at = sentence.find(part); at != std::string::npos; at = sentence.find(part)) {
        sentence.erase(at, part.size());
        ++count;
    }
    return {sentence, count};
}

TEST(DecideTest, IsNeverOlderThanTheNewestDurableStepOfTheLine) {
    for_each_case([](const Case& one) {
        if (one.flag != Flag::resume && one.flag != Flag::resume_if_any) {
            return;
        }
        const Decision decision = decide(found_of(one));
        if (decision.action == Action::refuse || decision.action == Action::start_anew) {
            return;
        }
        if (all_are(one, {Trace::nothing})) {
            return;  // any checkpoint is the newest
        }
        if (all_are(one, {Trace::other_line, Trace::nothing})) {
            EXPECT_EQ(decision.line.run, "other") << name_of(one);
            return;
        }
        EXPECT_GE(step_of(one, decision), newest_durable(one)) << name_of(one);
    });
}

TEST(DecideTest, NeverTakesAnotherLine) {
    for_each_case([](const Case& one) {
        const Decision decision = decide(found_of(one));
        const bool uses =
            decision.action != Action::refuse && decision.action != Action::start_anew;
        if (!uses || one.flag == Flag::from) {
            return;
        }
        const bool has_line = has(one, Trace::whole) || has(one, Trace::older_by_one) ||
                              has(one, Trace::other_layout) || has(one, Trace::refilled);
        if (has(one, Trace::other_line)) {
            EXPECT_FALSE(has_line || has(one, Trace::branched)) << name_of(one);
            EXPECT_EQ(decision.line.run, "other") << name_of(one);
        } else if (has(one, Trace::branched)) {
            EXPECT_EQ(decision.line.run, "branch") << name_of(one);
        } else if (has_line) {
            EXPECT_EQ(decision.line.run, "line") << name_of(one);
        }
        const Found found = found_of(one);
        for (const std::size_t manifest : decision.manifests) {
            const auto& of = *found.manifests[manifest].manifest;
            EXPECT_TRUE(store::last_step_of(decision.line, of.line.run)) << name_of(one);
        }
    });
}

TEST(DecideTest, StartsAnewOnlyWhereNoRankHasATraceOrWhenToldTo) {
    for_each_case([](const Case& one) {
        const Decision decision = decide(found_of(one));
        const bool is_clean = all_are(one, {Trace::nothing}) && one.kept == Kept::none;
        if (decision.action == Action::start_anew) {
            EXPECT_TRUE(is_clean || one.flag == Flag::fresh) << name_of(one);
            EXPECT_NE(one.flag, Flag::resume) << name_of(one);
        }
        if (one.flag == Flag::fresh) {
            EXPECT_EQ(decision.action, Action::start_anew) << name_of(one);
        }
        if (one.flag == Flag::none && !is_clean) {
            EXPECT_EQ(decision.action, Action::refuse) << name_of(one);
        }
    });
}

TEST(DecideTest, KeepsTheFilesOfAStateThatIsReplacedUntilItIs) {
    for_each_case([](const Case& one) {
        const Found found = found_of(one);
        const Decision decision = decide(found);
        if (decision.action != Action::load_checkpoint && decision.action != Action::read_state) {
            return;
        }
        const bool has_steps = std::any_of(
            found.manifests.begin(), found.manifests.end(), [](const FoundManifest& manifest) {
                return manifest.manifest && !manifest.manifest->commits.empty();
            });
        EXPECT_EQ(decision.set, found.manifests.empty() ? 0 : 1) << name_of(one);
        EXPECT_EQ(decision.replaces.empty(), !has_steps) << name_of(one);
    });
}

TEST(DecideTest, NeverCombinesStatesThatWereFilledApart) {
    for_each_case([](const Case& one) {
        const Found found = found_of(one);
        const Decision decision = decide(found);
        std::set<std::string> states;
        for (const std::size_t manifest : decision.manifests) {
            states.insert(found.manifests[manifest].manifest->state);
        }
        EXPECT_LE(states.size(), 1U) << name_of(one);
        if (decision.action == Action::resume_state || decision.action == Action::read_state) {
            EXPECT_EQ(decision.manifests.size(), one.traces.size()) << name_of(one);
        }
    });
}

TEST(DecideTest, RefusesWithAWayToStartAnewAndListsWhatThereIs) {
    for_each_case([](const Case& one) {
        const Found found = found_of(one);
        const Decision decision = decide(found);
        if (decision.action != Action::refuse || all_are(one, {Trace::nothing})) {
            return;
        }
        if (one.flag != Flag::from) {
            EXPECT_THAT(decision.refusal.remedies, Contains(Remedy::fresh)) << name_of(one);
        }
        if (one.flag == Flag::resume) {
            const std::string words = in_words(decision.refusal, found);
            EXPECT_THAT(words, HasSubstr("host0")) << name_of(one);
            EXPECT_THAT(words, HasSubstr("/rank-")) << name_of(one);
        }
    });
}

TEST(DecideTest, RefusesInTheWordsOfTheReaderAndLeavesPathsAsTheyAre) {
    for_each_case([](const Case& one) {
        Found found = found_of(one);
        found.state_folder = "p--fresh/csd.path/train.seed";
        found.checkpoint_folder = "c--from/--resume";
        for (FoundManifest& manifest : found.manifests) {
            manifest.path = "p--fresh/csd.path/" + manifest.path;
        }
        const Decision decision = decide(found);
        if (decision.action != Action::refuse) {
            return;
        }
        const std::string program = in_words(decision.refusal, found);
        write_messages_for(Client::python);
        std::string python = in_words(decision.refusal, found);
        write_messages_for(Client::program);
        for (const char* path : {"p--fresh/csd.path", "c--from/--resume"}) {
            EXPECT_EQ(without(python, path).second, without(program, path).second) << name_of(one);
            python = without(python, path).first;
        }
        EXPECT_THAT(python, Not(HasSubstr("--"))) << name_of(one);
        EXPECT_THAT(python, Not(HasSubstr("csd.path"))) << name_of(one);
    });
}

TEST(DecideTest, ResumesWhereverAllIsThere) {
    for_each_case([](const Case& one) {
        if (one.flag != Flag::resume && one.flag != Flag::resume_if_any) {
            return;
        }
        const Decision decision = decide(found_of(one));
        const bool has_state = all_are(one, {Trace::whole, Trace::older_by_one});
        const bool is_left_alone = one.kept != Kept::newer && one.kept != Kept::damaged &&
                                   !(one.kept == Kept::equal && has(one, Trace::older_by_one));
        if (has_state && is_left_alone) {
            EXPECT_EQ(decision.action, Action::resume_state) << name_of(one);
            EXPECT_EQ(decision.set, 0) << name_of(one);
        }
        if (has_state && one.kept == Kept::newer) {
            EXPECT_EQ(decision.action, Action::load_checkpoint) << name_of(one);
        }
        if (all_are(one, {Trace::other_layout}) && one.kept == Kept::older) {
            EXPECT_EQ(decision.action, Action::read_state) << name_of(one);
        }
    });
}

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
        Found found =
            found_of({.traces = {Trace::whole, Trace::nothing}, .kept = Kept::older, .flag = flag});
        found.manifests[0].manifest->places[1] = "host9 p1/rank-1.manifest";
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
    Found lost = found_of({.traces = {Trace::whole, Trace::nothing},
                           .kept = Kept::older,
                           .flag = Flag::resume_if_any});
    lost.manifests[0].manifest->places[1] = "host9 p1/rank-1.manifest";
    const Decision without = decide(lost);
    Found found = found_of({.traces = {Trace::nothing, Trace::whole}, .flag = Flag::resume_if_any});
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
    EXPECT_EQ(decision.commits.front().step, 5);
}

// Rank 0 has published the new state's manifest, rank 1 has not.
TEST(DecideTest, TakesAStateThatReplacesAnotherOnlyWhenAllRanksHaveIt) {
    Found found = found_of({.traces = {Trace::whole, Trace::whole}, .flag = Flag::resume});
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
        EXPECT_EQ(decision.commits.front().step, rank == 0 ? kNewest : 3);
    }
}

TEST(DecideTest, RefusesAStateThatLacksAFileAndReadsOneThatLiesElsewhere) {
    Found found = found_of({.traces = {Trace::whole, Trace::whole}, .flag = Flag::resume});
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
    Found found = found_of({.traces = {Trace::whole}, .flag = Flag::resume_if_any});
    found.named = FoundCheckpoint{.path = "copy.h5", .step = 2, .line = kLine, .model = "model"};
    EXPECT_EQ(decide(found).action, Action::load_checkpoint);
    found.manifests[0].manifest->line = store::branch_off(kLine, 2, "mine");
    EXPECT_EQ(decide(found).action, Action::resume_state);
    EXPECT_EQ(decide(found).line.run, "mine");
    found.wish.kind = Flag::from;
    EXPECT_EQ(decide(found).action, Action::load_checkpoint);
}

TEST(DecideTest, GoesOnOnlyWithTheSameMomentsIfTheyAreNamed) {
    Found found = found_of({.traces = {Trace::whole}, .flag = Flag::resume});
    found.model = "model, moments of Lion";
    EXPECT_EQ(decide(found).action, Action::resume_state);  // of an earlier version
    found.manifests[0].manifest->model = "model, moments of Adam";
    EXPECT_EQ(decide(found).action, Action::refuse);
    EXPECT_EQ(decide(found).refusal.reason, Reason::other_model_of_state);
    EXPECT_EQ(decide(found).refusal.detail, "moments of Adam, not moments of Lion");
}

TEST(DecideTest, TakesAFirstCommitThatNotAllRanksCameToForNoStep) {
    Found found = found_of({.traces = {Trace::whole, Trace::whole}, .flag = Flag::resume_if_any});
    found.manifests[0].manifest->commits = {at(0)};
    found.manifests[1].manifest->commits.clear();
    EXPECT_EQ(decide(found).action, Action::start_anew);
    found.manifests[0].manifest->commits = {at(3)};
    found.checkpoints = checkpoints_of(Kept::older);
    EXPECT_EQ(decide(found).action, Action::load_checkpoint);
}

// Two starts were killed before their first commit; the second had claimed rank 0's folder only.
TEST(DecideTest, TakesRunsThatHaveNotBegunForNone) {
    Found found =
        found_of({.traces = {Trace::other_line, Trace::whole}, .flag = Flag::resume_if_any});
    EXPECT_EQ(decide(found).refusal.reason, Reason::several_runs);
    for (FoundManifest& one : found.manifests) {
        one.manifest->commits.clear();
    }
    EXPECT_EQ(decide(found).action, Action::start_anew);
    found.wish.kind = Flag::resume;
    EXPECT_EQ(decide(found).refusal.reason, Reason::nothing_to_resume);
    // A run with steps is not hidden by one without.
    found.manifests[1].manifest->commits = {at(3)};
    EXPECT_EQ(decide(found).refusal.reason, Reason::step_not_whole);
    EXPECT_EQ(decide(found).refusal.step, 3);
}

TEST(DecideTest, TakesAManifestWithoutStepsForNoStep) {
    Found found = found_of({.traces = {Trace::whole, Trace::nothing}, .flag = Flag::resume_if_any});
    found.manifests[0].manifest->commits.clear();
    EXPECT_EQ(decide(found).action, Action::start_anew);
    found.wish.kind = Flag::resume;
    EXPECT_EQ(decide(found).refusal.reason, Reason::nothing_to_resume);
    // Another run's checkpoints do not count.
    found.wish.kind = Flag::resume_if_any;
    found.checkpoints = checkpoints_of(Kept::other_line);
    EXPECT_EQ(decide(found).action, Action::refuse);
    found.checkpoints.push_back(checkpoints_of(Kept::older).front());
    EXPECT_EQ(decide(found).action, Action::load_checkpoint);
    EXPECT_EQ(decide(found).checkpoint_step, 3);
}

TEST(DecideTest, BeginsNothingAnewWhereAJobMayHaveLostItsSteps) {
    for (const Flag flag : {Flag::resume_if_any, Flag::from}) {
        Found found = found_of({.traces = {}, .flag = flag});
        found.wish.kind = Flag::resume_if_any;
        EXPECT_NE(decide(found).action, Action::refuse);
        found.may_have_begun = true;
        EXPECT_EQ(decide(found).refusal.reason, Reason::lost_all);
    }
    Found found = found_of({.traces = {}, .flag = Flag::none});
    found.may_have_begun = true;
    EXPECT_EQ(decide(found).action, Action::start_anew);
    // All its manifests are there and list no step, so there is none to lose.
    found = found_of({.traces = {Trace::whole}, .flag = Flag::resume_if_any});
    found.may_have_begun = true;
    EXPECT_EQ(decide(found).action, Action::resume_state);
    found.manifests[0].manifest->commits.clear();
    EXPECT_EQ(decide(found).action, Action::start_anew);
}

}  // namespace
}  // namespace nearstep::engine
