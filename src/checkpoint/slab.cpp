// Splits flat ranges of elements into boxes. Used by exports, inspect.cpp and index_fault.cpp.
#include "checkpoint/slab.hpp"

#include "base/error.hpp"

#include <algorithm>

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

Slab first_slab(std::span<const std::int64_t> shape, std::size_t begin, std::size_t end) {
    expects(begin < end && end <= elems_of(shape), "the elements lie in the array");
    Slab slab{.part = {}, .elems = 1};
    // The outer dimensions take one index each. The first dimension with a whole box at `begin`
    // takes several indices, and the dimensions inside it are whole.
    bool is_inner = false;
    std::size_t stride = elems_of(shape);
    for (const std::int64_t dimension : shape) {
        const auto length = static_cast<std::size_t>(dimension);
        stride /= length;
        const std::size_t index = begin / stride % length;
        std::size_t count = is_inner ? length : 1;
        if (!is_inner && begin % stride == 0 && end - begin >= stride) {
            is_inner = true;
            count = std::min((end - begin) / stride, length - index);
        }
        slab.part.start.push_back(index);
        slab.part.count.push_back(count);
        slab.elems *= count;
    }
    return slab;
}

void write_flat(const h5::Dataset& dataset, std::span<const std::int64_t> shape, std::size_t begin,
                std::size_t count, hid_t memory_type, std::size_t elem_bytes,
                const std::byte* data) {
    for (std::size_t done = 0; done < count;) {
        const Slab slab = first_slab(shape, begin + done, begin + count);
        h5::write_part(dataset, slab.part, memory_type, data + done * elem_bytes);
        done += slab.elems;
    }
}

}  // namespace nearstep::checkpoint
