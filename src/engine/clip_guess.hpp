// Whether an update may begin before the norm of its gradient is known.
#pragma once

#include <cstddef>
#include <deque>

namespace nearstep::engine {

// Guesses that the next step is neither clipped nor skipped if most of the last steps were neither.
// Norms are the same on all ranks, so guesses are too. The guess is no before the first step and
// after a restart.
class ClipGuess {
public:
    static constexpr std::size_t kSteps = 8;  // looks back at most this many

    bool is_unclipped() const;
    // Called after every step, whether it was guessed or not.
    void note_step(bool was_unclipped);

private:
    std::deque<bool> last_;
};

}  // namespace nearstep::engine
