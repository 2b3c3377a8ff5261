// Computes the factor by which a gradient is clipped, and whether an update may begin before the
// norm is known.
#pragma once

#include <cstddef>
#include <deque>

namespace nearstep::engine {

// Factor that scales a gradient of norm `norm` down to at most clip_norm; 1 if clip_norm is 0.
inline double clip_factor(double norm, double clip_norm) {
    return clip_norm > 0 && norm > clip_norm ? clip_norm / norm : 1.0;
}

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
