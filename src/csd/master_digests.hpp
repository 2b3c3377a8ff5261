// Digests of the masters that a device's storage holds, so that a part of a subgroup that is read
// is verified without the rest. They are in memory: 4 bytes for each page of both places. Used by
// StateVolume.
#pragma once

#include "csd/state_layout.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace nearstep::csd {

// Pages have Device::kReadElems masters. Any thread may call, for different places at once.
class MasterDigests {
public:
    explicit MasterDigests(const StateLayout& layout);

    // The subgroup's place of this generation holds `payload`, or will. Masters are its first
    // array.
    void note(std::size_t subgroup, std::int64_t generation, std::span<const std::byte> payload);

    // Whether this generation was the last one noted for its place.
    bool know(std::size_t subgroup, std::int64_t generation) const {
        return place_of(subgroup, generation).generation == generation;
    }
    // Whether these are the masters from byte `begin` on; both ends are those of pages.
    bool match(std::size_t subgroup, std::int64_t generation, std::size_t begin,
               std::span<const std::byte> masters) const;

private:
    struct Place {
        std::int64_t generation = -1;         // -1: nothing was noted
        std::vector<std::uint32_t> of_pages;  // the lower half of each page's XXH3
    };

    const Place& place_of(std::size_t subgroup, std::int64_t generation) const {
        return subgroups_[subgroup].at(static_cast<std::size_t>(generation) % StateLayout::kPlaces);
    }

    std::size_t page_bytes_;
    std::vector<std::array<Place, StateLayout::kPlaces>> subgroups_;
};

}  // namespace nearstep::csd
