// Divides tiles among devices by their speeds. Used by the engine and by plans.
#include "shard/partition.hpp"

#include "base/error.hpp"
#include "base/wording.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <queue>
#include <utility>

namespace nearstep::shard {

namespace {

// Tiles of a stripe: enough to give the fastest device `subgroup_tiles`. If the vector is too short
// for `least_stripes` of these, fewer, but not below about one per device.
std::size_t stripe_width(const PartitionSettings& settings, double speed_sum) {
    const double fastest = std::ranges::max(settings.speeds);
    const auto devices = settings.speeds.size();
    const auto widest = static_cast<std::size_t>(static_cast<double>(settings.subgroup_tiles) *
                                                 speed_sum / fastest);
    const std::size_t tiles = tiles_of(settings.parameters);
    const std::size_t least = std::max<std::size_t>(settings.least_stripes, 1);
    const std::size_t narrow = (tiles + least - 1) / least;
    return std::max<std::size_t>(std::min(widest, std::max(narrow, devices)), 1);
}

// Deals tiles one by one, each to the device that is owed most. Of devices that are owed equally,
// up to rounding, the first one gets it. States rest on who gets which tile, so that the choice is
// always the one that first_of_most() makes.
class Dealer {
public:
    Dealer(const std::vector<double>& shares, std::vector<double>& owed, std::size_t largest)
        : shares_(shares), owed_(owed), largest_(largest), given_(shares.size(), 0) {
        for (std::size_t d = 0; d < shares.size(); ++d) {
            put_back(d);
        }
    }

    std::vector<std::size_t> deal(std::size_t width) {
        for (std::size_t dealt = 0; dealt < width;) {
            expects(!waiting_.empty(), "a stripe is not wider than its devices can take");
            const std::vector<std::size_t> equal = take_most();
            std::size_t taken = 0;
            for (; taken < equal.size() && dealt < width; ++taken, ++dealt) {
                give(equal[taken]);
            }
            std::for_each(equal.begin() + static_cast<std::ptrdiff_t>(taken), equal.end(),
                          [&](std::size_t d) { put_back(d); });
        }
        return given_;
    }

private:
    static constexpr double kRounding = 1e-9;

    bool may_get(std::size_t d) const { return shares_[d] > 0 && given_[d] < largest_; }

    void give(std::size_t d) {
        ++given_[d];
        owed_[d] -= 1;
        put_back(d);
    }

    void put_back(std::size_t d) {
        if (may_get(d)) {
            waiting_.emplace(owed_[d], d);
        }
    }

    // The devices that are owed most, in order: several where they are clearly equal, and clearly
    // more than the next.
    std::vector<std::size_t> take_most() {
        const double most = waiting_.top().first;
        std::vector<std::size_t> equal = take_above(most - kRounding / 2);
        std::ranges::sort(equal);
        if (waiting_.empty() || waiting_.top().first < most - 3 * kRounding) {
            return equal;
        }
        const std::size_t first = first_of_most();
        for (const std::size_t d : take_above(most - 3 * kRounding)) {
            equal.push_back(d);
        }
        std::erase(equal, first);
        std::ranges::for_each(equal, [&](std::size_t d) { put_back(d); });
        return {first};
    }

    std::vector<std::size_t> take_above(double least) {
        std::vector<std::size_t> taken;
        while (!waiting_.empty() && waiting_.top().first >= least) {
            taken.push_back(waiting_.top().second);
            waiting_.pop();
        }
        return taken;
    }

    std::size_t first_of_most() const {
        std::size_t next = shares_.size();
        for (std::size_t d = 0; d < shares_.size(); ++d) {
            if (may_get(d) && (next == shares_.size() || owed_[d] > owed_[next] + kRounding)) {
                next = d;
            }
        }
        return next;
    }

    const std::vector<double>& shares_;
    std::vector<double>& owed_;
    std::size_t largest_;
    std::vector<std::size_t> given_;
    std::priority_queue<std::pair<double, std::size_t>> waiting_;
};

// How many of the next `width` tiles each device gets: its share, plus the rounding error that
// earlier stripes left in `owed`.
std::vector<std::size_t> deal(std::size_t width, const std::vector<double>& shares,
                              std::vector<double>& owed, std::size_t largest) {
    for (std::size_t d = 0; d < shares.size(); ++d) {
        owed[d] += static_cast<double>(width) * shares[d];
    }
    return Dealer(shares, owed, largest).deal(width);
}

// The devices in the order of their runs in a stripe: the first of each node, the second of each,
// and so on.
std::vector<std::size_t> order_of(const PartitionSettings& settings) {
    std::vector<std::size_t> order(settings.speeds.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (!settings.nodes.empty()) {
        std::map<int, std::size_t> met;
        std::vector<std::size_t> turns;  // of each device in its node
        for (const int node : settings.nodes) {
            turns.push_back(met[node]++);
        }
        std::ranges::stable_sort(order, {}, [&](std::size_t d) { return turns[d]; });
    }
    return order;
}

}  // namespace

Partition::Partition(const PartitionSettings& settings) : parameters_(settings.parameters) {
    if (settings.speeds.empty()) {
        throw ConfigError(text("There is no device to hold the optimizer state: set ",
                               Term::per_rank, " to 1 or more."));
    }
    for (const double speed : settings.speeds) {
        if (!(speed >= 0)) {
            throw ConfigError(
                text("A device's speed is ", speed, ": set csd.speed to positive numbers."));
        }
    }
    expects(settings.subgroup_tiles > 0, "a subgroup has room for a tile");
    expects(settings.nodes.empty() || settings.nodes.size() == settings.speeds.size(),
            "each device is in a node");

    const double sum = std::accumulate(settings.speeds.begin(), settings.speeds.end(), 0.0);
    if (sum == 0) {
        throw ConfigError("All devices have speed 0: set csd.speed to positive numbers.");
    }
    std::vector<double> shares;
    for (const double speed : settings.speeds) {
        shares.push_back(speed / sum);
    }
    const std::size_t devices = shares.size();
    by_device_.resize(devices);
    const std::vector<std::size_t> order = order_of(settings);
    const std::size_t width = stripe_width(settings, sum);
    std::vector<double> owed(devices, 0.0);
    for (std::size_t begin = 0; begin < tiles(); begin += width) {
        const std::size_t end = std::min(begin + width, tiles());
        const std::vector<std::size_t> given =
            deal(end - begin, shares, owed, settings.subgroup_tiles);
        std::size_t at = begin;
        for (const std::size_t d : order) {
            if (given[d] > 0) {
                subgroups_.push_back(
                    {static_cast<int>(d), by_device_[d].size(), {at, at + given[d]}});
                by_device_[d].push_back(subgroups_.back());
                at += given[d];
            }
        }
    }
}

const std::vector<Subgroup>& Partition::subgroups_of(int device) const {
    expects(device >= 0 && device < devices(), "the device exists");
    return by_device_[static_cast<std::size_t>(device)];
}

std::size_t Partition::subgroup_of_tile(std::size_t tile) const {
    expects(tile < tiles(), "the tile exists");
    const auto after = std::ranges::upper_bound(subgroups_, tile, {},
                                                [](const Subgroup& s) { return s.tiles.begin; });
    return static_cast<std::size_t>(after - subgroups_.begin()) - 1;
}

std::size_t Partition::largest_subgroup_tiles(int device) const {
    std::size_t largest = 0;
    for (const Subgroup& subgroup : subgroups_of(device)) {
        largest = std::max(largest, subgroup.tiles.size());
    }
    return largest;
}

std::size_t Partition::elems_in_tile(std::size_t tile) const {
    expects(tile < tiles(), "the tile exists");
    return std::min(kTileElems, parameters_ - tile * kTileElems);
}

DeviceMap::DeviceMap(const std::vector<int>& devices_per_rank) : first_{0} {
    for (const int count : devices_per_rank) {
        if (count < 0) {
            throw ConfigError(text("A rank cannot have ", count, " devices: set ", Term::per_rank,
                                   " to 0 or more."));
        }
        first_.push_back(first_.back() + count);
    }
    if (first_.back() == 0) {
        throw ConfigError(text("No rank has a device to hold the optimizer state: set ",
                               Term::per_rank, " to 1 or more."));
    }
}

int DeviceMap::first(int rank) const {
    expects(rank >= 0 && rank < ranks(), "the rank exists");
    return first_[static_cast<std::size_t>(rank)];
}

int DeviceMap::count(int rank) const {
    expects(rank >= 0 && rank < ranks(), "the rank exists");
    return first_[static_cast<std::size_t>(rank) + 1] - first_[static_cast<std::size_t>(rank)];
}

int DeviceMap::rank_of(int device) const {
    expects(device >= 0 && device < devices(), "the device exists");
    const auto after = std::ranges::upper_bound(first_, device);
    return static_cast<int>(after - first_.begin()) - 1;
}

int owner_of(const Partition& partition, const DeviceMap& devices, std::size_t subgroup) {
    return devices.rank_of(partition.subgroups()[subgroup].device);
}

}  // namespace nearstep::shard
