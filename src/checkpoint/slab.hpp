// Splits consecutive elements of a row-major array into boxes, which HDF5 writes.
#pragma once

#include "checkpoint/h5.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace nearstep::checkpoint {

// Product of the dimensions; 1 for a scalar.
std::size_t elems_of(std::span<const std::int64_t> shape);

// elems_of() for an unchecked shape; nullopt if a dimension is below 1 or the product above `most`.
std::optional<std::size_t> elems_within(std::span<const std::int64_t> shape, std::size_t most);

// A box whose elements are consecutive.
struct Slab {
    h5::Part part;
    std::size_t elems = 0;
};

// The largest slab that starts at element `begin` and ends at or before `end`; begin < end.
Slab first_slab(std::span<const std::int64_t> shape, std::size_t begin, std::size_t end);

// Writes elements [begin, begin + count) of a dataset of `shape`, with `elem_bytes` per element in
// memory. Makes at most 2 x dimensions - 1 calls of the library.
void write_flat(const h5::Dataset& dataset, std::span<const std::int64_t> shape, std::size_t begin,
                std::size_t count, hid_t memory_type, std::size_t elem_bytes,
                const std::byte* data);

}  // namespace nearstep::checkpoint
