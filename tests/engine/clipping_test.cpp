// Tests the factor of clipping, and the guess that lets updates begin before the norm is known.
#include "engine/route/clipping.hpp"

#include "support/test.hpp"

namespace nearstep::engine {
namespace {

TEST(ClipFactor, BringsTheNormDownToTheLimitAndNeverUp) {
    EXPECT_DOUBLE_EQ(clip_factor(4, 1), 0.25);
    EXPECT_DOUBLE_EQ(clip_factor(0.5, 1), 1);
    EXPECT_DOUBLE_EQ(clip_factor(4, 0), 1);
}

struct Tally {
    int guesses = 0;
    int misses = 0;
};

// Over `steps` steps, of which every `period`-th is clipped; 0: none.
Tally tally_of(int steps, int period) {
    ClipGuess guess;
    Tally tally;
    for (int step = 1; step <= steps; ++step) {
        const bool is_unclipped = period == 0 || step % period != 0;
        tally.guesses += guess.is_unclipped() ? 1 : 0;
        tally.misses += guess.is_unclipped() && !is_unclipped ? 1 : 0;
        guess.note_step(is_unclipped);
    }
    return tally;
}

TEST(ClipGuessTest, GuessesAllStepsButTheFirstOfARunThatNeverClips) {
    EXPECT_EQ(tally_of(50, 0).guesses, 49);
    EXPECT_EQ(tally_of(50, 0).misses, 0);
}

TEST(ClipGuessTest, NeverGuessesWhereEveryStepClips) { EXPECT_EQ(tally_of(50, 1).guesses, 0); }

TEST(ClipGuessTest, StopsWhereEverySecondStepClips) { EXPECT_LE(tally_of(1000, 2).guesses, 5); }

TEST(ClipGuessTest, GoesOnWhereFewStepsClip) {
    const Tally tally = tally_of(1000, 10);
    EXPECT_EQ(tally.guesses, 999);
    EXPECT_EQ(tally.misses, 100);
}

TEST(ClipGuessTest, BeginsAgainWhenMostOfTheLastStepsDidNotClip) {
    ClipGuess guess;
    for (int step = 0; step < 100; ++step) {
        guess.note_step(false);
    }
    int steps = 0;
    while (!guess.is_unclipped()) {
        guess.note_step(true);
        ++steps;
    }
    EXPECT_EQ(steps, static_cast<int>(ClipGuess::kSteps) / 2 + 1);
}

}  // namespace
}  // namespace nearstep::engine
