// A range of the parameter vector.
#pragma once

#include <cstddef>

namespace nearstep::shard {

// Elements [begin, end) of the parameter vector.
struct ElementRange {
    std::size_t begin = 0;
    std::size_t end = 0;

    std::size_t size() const { return end - begin; }
};

}  // namespace nearstep::shard
