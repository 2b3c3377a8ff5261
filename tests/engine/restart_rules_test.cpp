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

void is_never_older_than_the_newest_durable_step_of_the_line(const Case& one,
                                                             const Findings& /*found*/,
                                                             const Decision& decision) {
    if (one.flag != Flag::resume && one.flag != Flag::resume_if_any) {
        return;
    }
    if (decision.action == Action::refuse || decision.action == Action::start_anew) {
        return;
    }
    if (all_are(one, {Trace::nothing})) {
        return;  // any checkpoint is the newest
    }
    if (all_are(one, {Trace::other_line, Trace::nothing})) {
        EXPECT_EQ(decision.line.run, "other");
        return;
    }
    EXPECT_GE(step_of(one, decision), newest_durable(one));
}

void never_takes_another_line(const Case& one, const Findings& found, const Decision& decision) {
    const bool uses = decision.action != Action::refuse && decision.action != Action::start_anew;
    if (!uses || one.flag == Flag::from) {
        return;
    }
    const bool has_line = has(one, Trace::whole) || has(one, Trace::older_by_one) ||
                          has(one, Trace::other_layout) || has(one, Trace::refilled);
    if (has(one, Trace::other_line)) {
        EXPECT_FALSE(has_line || has(one, Trace::branched));
        EXPECT_EQ(decision.line.run, "other");
    } else if (has(one, Trace::branched)) {
        EXPECT_EQ(decision.line.run, "branch");
    } else if (has_line) {
        EXPECT_EQ(decision.line.run, "line");
    }
    for (const std::size_t manifest : decision.manifests) {
        const auto& of = *found.manifests[manifest].manifest;
        EXPECT_TRUE(store::last_step_of(decision.line, of.line.run));
    }
}

void starts_anew_only_where_no_rank_has_a_trace_or_when_told_to(const Case& one,
                                                                const Findings& /*found*/,
                                                                const Decision& decision) {
    const bool is_clean = all_are(one, {Trace::nothing}) && one.kept == Kept::none;
    if (decision.action == Action::start_anew) {
        EXPECT_TRUE(is_clean || one.flag == Flag::fresh);
        EXPECT_NE(one.flag, Flag::resume);
    }
    if (one.flag == Flag::fresh) {
        EXPECT_EQ(decision.action, Action::start_anew);
    }
    if (one.flag == Flag::none && !is_clean) {
        EXPECT_EQ(decision.action, Action::refuse);
    }
}

void keeps_the_files_of_a_state_that_is_replaced_until_it_is(const Case& /*one*/,
                                                             const Findings& found,
                                                             const Decision& decision) {
    if (decision.action != Action::load_checkpoint && decision.action != Action::read_state) {
        return;
    }
    const bool has_steps = std::any_of(
        found.manifests.begin(), found.manifests.end(), [](const FoundManifest& manifest) {
            return manifest.manifest && !manifest.manifest->commits.empty();
        });
    EXPECT_EQ(decision.set, found.manifests.empty() ? 0 : 1);
    EXPECT_EQ(decision.replaces.empty(), !has_steps);
}

void never_combines_states_that_were_filled_apart(const Case& one, const Findings& found,
                                                  const Decision& decision) {
    std::set<std::string> states;
    for (const std::size_t manifest : decision.manifests) {
        states.insert(found.manifests[manifest].manifest->state);
    }
    EXPECT_LE(states.size(), 1U);
    if (decision.action == Action::resume_state || decision.action == Action::read_state) {
        EXPECT_EQ(decision.manifests.size(), one.traces.size());
    }
}

void refuses_with_a_way_to_start_anew_and_lists_what_there_is(const Case& one,
                                                              const Findings& found,
                                                              const Decision& decision) {
    if (decision.action != Action::refuse || all_are(one, {Trace::nothing})) {
        return;
    }
    if (one.flag != Flag::from) {
        EXPECT_THAT(decision.refusal.remedies, Contains(Remedy::fresh));
    }
    if (one.flag == Flag::resume) {
        const std::string words = in_words(decision.refusal, found);
        EXPECT_THAT(words, HasSubstr("host0"));
        EXPECT_THAT(words, HasSubstr("/rank-"));
    }
}

void refuses_in_the_words_of_the_reader_and_leaves_paths_as_they_are(const Case& /*one*/,
                                                                     const Findings& found,
                                                                     const Decision& decision) {
    if (decision.action != Action::refuse) {
        return;
    }
    Findings odd = found;
    odd.state_folder = "p--fresh/csd.path/train.seed";
    odd.checkpoint_folder = "c--from/--resume";
    for (FoundManifest& manifest : odd.manifests) {
        manifest.path = "p--fresh/csd.path/" + manifest.path;
    }
    const Refusal refusal = decide(odd).refusal;
    const std::string program = in_words(refusal, odd);
    write_messages_for(Client::python);
    std::string python = in_words(refusal, odd);
    write_messages_for(Client::program);
    for (const char* path : {"p--fresh/csd.path", "c--from/--resume"}) {
        EXPECT_EQ(without(python, path).second, without(program, path).second);
        python = without(python, path).first;
    }
    EXPECT_THAT(python, Not(HasSubstr("--")));
    EXPECT_THAT(python, Not(HasSubstr("csd.path")));
}

void advises_no_checkpoint_of_another_run(const Case& one, const Findings& /*found*/,
                                          const Decision& decision) {
    if (one.kept == Kept::other_line && !has(one, Trace::other_line)) {
        EXPECT_EQ(decision.refusal.checkpoint, "");
    }
}

void resumes_wherever_all_is_there(const Case& one, const Findings& /*found*/,
                                   const Decision& decision) {
    if (one.flag != Flag::resume && one.flag != Flag::resume_if_any) {
        return;
    }
    const bool has_state = all_are(one, {Trace::whole, Trace::older_by_one});
    const bool is_left_alone = one.kept != Kept::newer && one.kept != Kept::damaged &&
                               !(one.kept == Kept::equal && has(one, Trace::older_by_one));
    if (has_state && is_left_alone) {
        EXPECT_EQ(decision.action, Action::resume_state);
        EXPECT_EQ(decision.set, 0);
    }
    if (has_state && one.kept == Kept::newer) {
        EXPECT_EQ(decision.action, Action::load_checkpoint);
    }
    if (all_are(one, {Trace::other_layout}) &&
        (one.kept == Kept::older || one.kept == Kept::equal)) {
        EXPECT_EQ(decision.action, Action::read_state);
        EXPECT_EQ(decision.checkpoint.empty(), one.kept == Kept::older);  // if state is damaged
    }
}

void says_that_state_without_a_manifest_is_given_up(const Case& one, const Findings& /*found*/,
                                                    const Decision& decision) {
    if (decision.action == Action::load_checkpoint && one.flag != Flag::from &&
        has(one, Trace::remains)) {
        EXPECT_THAT(decision.notes, Contains(HasSubstr("manifest is missing")));
    }
}

TEST(RestartRules, HoldInEveryCase) {
    constexpr std::array kRules = {is_never_older_than_the_newest_durable_step_of_the_line,
                                   never_takes_another_line,
                                   starts_anew_only_where_no_rank_has_a_trace_or_when_told_to,
                                   keeps_the_files_of_a_state_that_is_replaced_until_it_is,
                                   never_combines_states_that_were_filled_apart,
                                   refuses_with_a_way_to_start_anew_and_lists_what_there_is,
                                   refuses_in_the_words_of_the_reader_and_leaves_paths_as_they_are,
                                   advises_no_checkpoint_of_another_run,
                                   resumes_wherever_all_is_there,
                                   says_that_state_without_a_manifest_is_given_up};
    for_each_case([&](const Case& one) {
        SCOPED_TRACE(name_of(one));
        const Findings found = found_of(one);
        const Decision decision = decide(found);
        for (const auto rule : kRules) {
            rule(one, found, decision);
        }
    });
}

}  // namespace
}  // namespace nearstep::engine
