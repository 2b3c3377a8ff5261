// Notes and compares the digests of stored masters. Called by StateVolume.
#include "csd/master_digests.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "csd/device.hpp"

namespace nearstep::csd {

namespace {

std::uint32_t digest_of(std::span<const std::byte> page) {
    return static_cast<std::uint32_t>(xxh3(page));
}

}  // namespace

MasterDigests::MasterDigests(const StateLayout& layout)
    : page_bytes_(Device::kReadElems * size_bytes(master_dtype(layout.format()))),
      subgroups_(layout.subgroups()) {
    for (std::size_t s = 0; s < subgroups_.size(); ++s) {
        for (Place& place : subgroups_[s]) {
            place.of_pages.resize(layout.tiles_in(s) * shard::kTileElems / Device::kReadElems);
        }
    }
}

void MasterDigests::note(std::size_t subgroup, std::int64_t generation,
                         std::span<const std::byte> payload) {
    Place& place =
        subgroups_[subgroup].at(static_cast<std::size_t>(generation) % StateLayout::kPlaces);
    for (std::size_t page = 0; page < place.of_pages.size(); ++page) {
        place.of_pages[page] = digest_of(payload.subspan(page * page_bytes_, page_bytes_));
    }
    place.generation = generation;
}

bool MasterDigests::match(std::size_t subgroup, std::int64_t generation, std::size_t begin,
                          std::span<const std::byte> masters) const {
    expects(begin % page_bytes_ == 0 && masters.size() % page_bytes_ == 0,
            "masters are read in whole pages");
    const Place& place = place_of(subgroup, generation);
    bool is_equal = place.generation == generation;
    for (std::size_t at = 0; is_equal && at < masters.size(); at += page_bytes_) {
        is_equal = place.of_pages.at((begin + at) / page_bytes_) ==
                   digest_of(masters.subspan(at, page_bytes_));
    }
    return is_equal;
}

}  // namespace nearstep::csd
