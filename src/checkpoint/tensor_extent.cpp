// Multiplies dimensions. Used by exports, inspect.cpp and index_fault.cpp.
#include "checkpoint/tensor_extent.hpp"

namespace nearstep::checkpoint {

std::size_t elems_of(std::span<const std::int64_t> shape) {
    std::size_t elems = 1;
    for (const std::int64_t dimension : shape) {
        elems *= static_cast<std::size_t>(dimension);
    }
    return elems;
}

std::optional<std::size_t> elems_within(std::span<const std::int64_t> shape, std::size_t most) {
    std::size_t elems = 1;
    for (const std::int64_t dimension : shape) {
        if (dimension <= 0 || static_cast<std::size_t>(dimension) > most / elems) {
            return std::nullopt;
        }
        elems *= static_cast<std::size_t>(dimension);
    }
    return elems <= most ? std::optional(elems) : std::nullopt;
}

}  // namespace nearstep::checkpoint
