// Counts the differences between two arrays.
#pragma once

#include "base/dtype.hpp"

#include <cmath>
#include <cstddef>
#include <vector>

namespace nearstep {

// Number of elements with different bits. NaNs are equal whatever their payload.
inline std::size_t differences(const std::vector<float>& left, const std::vector<float>& right) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < left.size(); ++i) {
        const bool are_nan = std::isnan(left[i]) && std::isnan(right[i]);
        count += (bits_of(left[i]) != bits_of(right[i]) && !are_nan) ? 1U : 0U;
    }
    return count;
}

}  // namespace nearstep
