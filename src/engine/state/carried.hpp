// State that a client has in memory, for a run that goes on from it.
#pragma once

#include "store/manifest.hpp"

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace nearstep::engine {

// State of another layout that the client has, in place of start values alone.
struct Carried {
    store::Commit position = {};  // that it belongs to
    // Writes the moments of the elements from `first` on. Called by several threads at once.
    std::function<void(std::size_t first, std::span<float> moments1, std::span<float> moments2)>
        moments = {};
    std::vector<std::byte> program = {};  // what the client had kept with it
};

}  // namespace nearstep::engine
