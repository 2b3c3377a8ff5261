// Whether an update may begin before the norm of its gradient is known.
#pragma once

#include <cstddef>
#include <deque>

namespace nearstep::engine {

// Guesses that the next step is neither clipped nor skipped if most of the last steps were neither.
// Norms are the same on all ranks, and so are guesses. Before the first step, and behind a restart,
// nothing is known, and the guess is no.
class ClipGuess {
public:
    static constexpr std::size_t kSteps = 8;  // that it looks back on at most

    bool is_unclipped() const;
    // Of each step, guessed or not.
    void note_step(bool was_unclipped);

private:
    std::deque<bool> last_;
};

}  // namespace nearstep::engine
