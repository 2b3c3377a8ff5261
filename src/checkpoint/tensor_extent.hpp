// Counts the elements of a tensor by its shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace nearstep::checkpoint {

// Product of the dimensions; 1 for a scalar.
std::size_t elems_of(std::span<const std::int64_t> shape);

// elems_of() for an unchecked shape; nullopt if a dimension is below 1 or the product above `most`.
std::optional<std::size_t> elems_within(std::span<const std::int64_t> shape, std::size_t most);

}  // namespace nearstep::checkpoint
