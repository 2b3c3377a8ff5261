// Checks decide() on every combination of a few findings against rules that always hold.
#include "base/wording.hpp"
#include "engine/restart_cases.hpp"

namespace nearstep::engine {
namespace {

using namespace cases;
using testing::Contains;

std::int64_t step_of(const Case& one, const Decision& decision) {
    if (decision.action == Action::load_checkpoint) {
        return decision.checkpoint == "copy/named.h5" ? 2 : checkpoints_of(one.kept).front().step;
    }
    return decision.steps.empty() ? -1 : decision.steps.front().commit.step;
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

TEST(RestartRules, IsNeverOlderThanTheNewestDurableStepOfTheLine) {
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

TEST(RestartRules, NeverTakesAnotherLine) {
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
        const Findings found = found_of(one);
        for (const std::size_t manifest : decision.manifests) {
            const auto& of = *found.manifests[manifest].manifest;
            EXPECT_TRUE(store::last_step_of(decision.line, of.line.run)) << name_of(one);
        }
    });
}

TEST(RestartRules, StartsAnewOnlyWhereNoRankHasATraceOrWhenToldTo) {
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

TEST(RestartRules, KeepsTheFilesOfAStateThatIsReplacedUntilItIs) {
    for_each_case([](const Case& one) {
        const Findings found = found_of(one);
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

TEST(RestartRules, NeverCombinesStatesThatWereFilledApart) {
    for_each_case([](const Case& one) {
        const Findings found = found_of(one);
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

TEST(RestartRules, RefusesWithAWayToStartAnewAndListsWhatThereIs) {
    for_each_case([](const Case& one) {
        const Findings found = found_of(one);
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

TEST(RestartRules, RefusesInTheWordsOfTheReaderAndLeavesPathsAsTheyAre) {
    for_each_case([](const Case& one) {
        Findings found = found_of(one);
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

TEST(RestartRules, AdvisesNoCheckpointOfAnotherRun) {
    for_each_case([](const Case& one) {
        const Decision decision = decide(found_of(one));
        if (one.kept == Kept::other_line && !has(one, Trace::other_line)) {
            EXPECT_EQ(decision.refusal.checkpoint, "") << name_of(one);
        }
    });
}

TEST(RestartRules, ResumesWhereverAllIsThere) {
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

}  // namespace
}  // namespace nearstep::engine
