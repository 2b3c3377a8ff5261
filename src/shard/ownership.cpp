// The copies of the state and the owners of tiles. Used by the engine and the exchanges.
#include "shard/ownership.hpp"

#include "base/error.hpp"

#include <utility>

namespace nearstep::shard {

int Replica::owner_of_tile(std::size_t tile) const {
    if (!owners.empty()) {
        return owners.at(tile);
    }
    const int position = owner_of(partition, devices, partition.subgroup_of_tile(tile));
    return ranks[static_cast<std::size_t>(position)];
}

Ownership::Ownership(std::vector<Replica> copies) : copies_(std::move(copies)) {
    expects(!copies_.empty(), "there is a copy");
    std::size_t ranks = 0;
    for (const Replica& copy : copies_) {
        ranks += copy.ranks.size();
    }
    copy_of_.assign(ranks, -1);
    for (std::size_t number = 0; number < copies_.size(); ++number) {
        const Replica& copy = copies_[number];
        expects(copy.owners.empty() ? copy.devices.ranks() == static_cast<int>(copy.ranks.size()) &&
                                          copy.devices.devices() == copy.partition.devices()
                                    : copy.owners.size() == copy.partition.tiles(),
                "a copy is over the devices of its ranks, or each tile has an owner");
        expects(copy.partition.tiles() == tiles(), "all copies are of the same parameters");
        for (const int rank : copy.ranks) {
            int& found = copy_of_.at(static_cast<std::size_t>(rank));
            expects(found < 0, "a rank is in one copy");
            found = static_cast<int>(number);
        }
    }
}

const Replica& Ownership::copy(int number) const {
    expects(number >= 0 && number < copies(), "the copy exists");
    return copies_[static_cast<std::size_t>(number)];
}

int Ownership::copy_of(int rank) const { return copy_of_.at(static_cast<std::size_t>(rank)); }

bool Ownership::owns(int rank, std::size_t tile) const {
    return of_rank(rank).owner_of_tile(tile) == rank;
}

std::vector<int> Ownership::owners_among(std::span<const int> ranks, std::size_t tile) const {
    std::vector<int> owners;
    int number = -1;  // the copy of `owner`; usually the same for all ranks
    int owner = -1;
    for (const int rank : ranks) {
        if (copy_of(rank) != number) {
            number = copy_of(rank);
            owner = copy(number).owner_of_tile(tile);
        }
        if (rank == owner) {
            owners.push_back(rank);
        }
    }
    return owners;
}

}  // namespace nearstep::shard
