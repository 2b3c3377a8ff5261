// Computes the factor that clips a gradient, and guesses whether the next step is clipped. Used by
// the engine's step.
#include "engine/route/clipping.hpp"

#include <algorithm>

namespace nearstep::engine {

bool ClipGuess::is_unclipped() const {
    const auto unclipped = static_cast<std::size_t>(std::ranges::count(last_, true));
    return 2 * unclipped > last_.size();
}

void ClipGuess::note_step(bool was_unclipped) {
    last_.push_back(was_unclipped);
    if (last_.size() > kSteps) {
        last_.pop_front();
    }
}

}  // namespace nearstep::engine
