// Takes speeds from a trial or an earlier run, and agrees on them. Called before an engine is made.
#include "engine/placement/device_speeds.hpp"

#include "base/error.hpp"
#include "base/formatted.hpp"
#include "csd/cpu_device.hpp"
#include "engine/placement/devices.hpp"
#include "engine/placement/speed_trial.hpp"
#include "engine/placement/tier_shares.hpp"
#include "mpi/topology.hpp"
#include "shard/partition.hpp"

#include <algorithm>
#include <array>
#include <span>

namespace nearstep::engine {

namespace {

constexpr std::size_t kMostListed = 16;

double tiles_of(const shard::Partition& partition, int device) {
    double tiles = 0;
    for (const shard::Subgroup& subgroup : partition.subgroups_of(device)) {
        tiles += static_cast<double>(subgroup.tiles.size());
    }
    return tiles;
}

// The device's share of its copy.
double share_of(const shard::Ownership& owners, int rank, int local) {
    const shard::Replica& copy = owners.of_rank(rank);
    const auto position = std::ranges::find(copy.ranks, rank) - copy.ranks.begin();
    const int device = copy.devices.first(static_cast<int>(position)) + local;
    return tiles_of(copy.partition, device) / static_cast<double>(copy.partition.tiles());
}

std::string describe_measured(const PlacedSettings& settings, const shard::Ownership& owners) {
    const int ranks = owners.ranks();
    const std::vector<std::vector<config::Tier>> tiers = config::tiers_per_rank(settings, ranks);
    const shard::DeviceMap devices(config::devices_per_rank(settings, ranks));
    std::string list;
    std::string idle;
    std::size_t listed = 0;
    for (int rank = 0; rank < ranks; ++rank) {
        for (int local = 0; local < devices.count(rank); ++local, ++listed) {
            const auto place =
                static_cast<std::size_t>(devices.first(rank)) + static_cast<std::size_t>(local);
            const double speed = settings.speeds[place];
            const config::Tier tier =
                tiers[static_cast<std::size_t>(rank)][static_cast<std::size_t>(local)];
            if (speed > 0 && share_of(owners, rank, local) == 0) {
                idle = text("; device ", local, " of rank ", rank,
                            " has none of the state, while this run lasts: if it was only busy, "
                            "start anew, or set csd.speed to numbers");
            }
            if (listed >= kMostListed) {
                continue;
            }
            list += text(list.empty() ? "" : ", ",
                         tier == config::Tier::drive ? text(speed)
                         : tier == config::Tier::gpu ? "in GPU memory"
                                                     : "in memory",
                         " (", three_digits(100 * share_of(owners, rank, local)), " %)");
        }
    }
    return text(
        R"(csd.speed "auto": tiles per second of each device in an update of this run, and its share of the state: )",
        list, listed > kMostListed ? text(" and ", listed - kMostListed, " more") : "", idle);
}

}  // namespace

bool measures_speeds(const config::EngineSettings& settings) {
    return settings.csd.speed.empty() && settings.csd.device != config::DeviceKind::xrt &&
           settings.mode != config::Mode::base;
}

namespace {

// Tiles that the device updates within `seconds`.
double tiles_within(const UnequalDevice& device, double seconds) {
    const double kept = device.of_kept * seconds;
    if (kept <= device.if_all_fit) {
        return kept;
    }
    const double rest = seconds - device.otherwise / device.of_kept;
    return std::max(device.if_all_fit, device.otherwise + rest * device.of_read);
}

// Adds the tiles that the device's slots keep, for subgroups like these.
UnequalDevice with_slots(const config::EngineSettings& settings, const TrialSpeeds& speeds,
                         const shard::Partition& partition, int device) {
    UnequalDevice made{.of_read = speeds.of_read, .of_kept = speeds.of_kept};
    const std::vector<shard::Subgroup>& subgroups = partition.subgroups_of(device);
    if (subgroups.empty()) {
        return made;
    }
    // Less, because shares are rounded, and memory is taken before the devices are made.
    const std::size_t bytes = speeds.read_ahead_bytes / 10 * 9;
    const csd::KeptSlots slots = csd::slots_that_keep(
        bytes, csd::slot_bytes(settings.csd.state, partition.largest_subgroup_tiles(device)));
    const double tiles_of_slot =
        tiles_of(partition, device) / static_cast<double>(subgroups.size());
    made.if_all_fit = static_cast<double>(slots.if_all_fit) * tiles_of_slot;
    made.otherwise = static_cast<double>(slots.otherwise) * tiles_of_slot;
    return made;
}

// Balances the drives of one copy, whose subgroups, and so their slots, are those of the speeds
// that were resolved before. csd.tiers says what the devices of other tiers have.
void balance(PlacedSettings& settings, const std::vector<TrialSpeeds>& trials, std::size_t elems,
             const std::vector<int>& copy, int ranks) {
    const std::vector<int> drives_of = config::drives_per_rank(settings, ranks);
    const shard::DeviceMap devices(config::devices_per_rank(settings, ranks));
    const shard::Partition partition = make_copy(settings, elems, copy, ranks).partition;
    double tiles = 0;
    std::vector<std::size_t> places;
    std::vector<UnequalDevice> drives;
    int first = 0;  // of the rank, in the copy
    for (const int rank : copy) {
        for (int local = 0; local < drives_of[static_cast<std::size_t>(rank)]; ++local) {
            const int drive = first + local;
            tiles += tiles_of(partition, drive);
            places.push_back(static_cast<std::size_t>(devices.first(rank) + local));
            drives.push_back(with_slots(settings, trials[places.back()], partition, drive));
        }
        first += devices.count(rank);
    }
    const std::vector<double> balanced = balanced_speeds(drives, tiles);
    for (std::size_t i = 0; i < places.size(); ++i) {
        settings.speeds[places[i]] = four_digits(balanced[i]);
    }
}

std::vector<double> measured_speeds(const mpi::Communicator& world, const PlacedSettings& settings,
                                    const Layout& layout, const mpi::Topology& nodes) {
    const std::vector<TrialSpeeds> drives = measure_devices(world, settings, layout);
    std::vector<TrialSpeeds> trials;  // of all devices
    auto drive = drives.begin();
    for (const std::vector<config::Tier>& of_rank :
         config::tiers_per_rank(settings, world.size())) {
        for (const config::Tier tier : of_rank) {
            trials.push_back(tier == config::Tier::drive ? *drive++ : TrialSpeeds{.of_read = 1});
        }
    }
    PlacedSettings resolved = settings;
    resolved.speeds.clear();
    for (const TrialSpeeds& trial : trials) {
        resolved.speeds.push_back(trial.of_read);
    }
    constexpr int kRounds = 4;  // a device's subgroups grow with its speed
    for (int round = 0; round < kRounds; ++round) {
        resolve_all_tiers(resolved, layout.elems, nodes);
        for (const std::vector<int>& copy : copies_of(settings, nodes).ranks_of) {
            balance(resolved, trials, layout.elems, copy, world.size());
        }
    }
    // All ranks use the speeds that rank 0 computed, because hosts may differ in cores and in
    // mathematics.
    std::vector<double> speeds(trials.size(), 0.0);
    if (world.rank() == 0) {
        speeds = resolved.speeds;
    }
    world.sum(std::span(speeds));
    return speeds;
}

}  // namespace

std::vector<double> balanced_speeds(const std::vector<UnequalDevice>& devices, double tiles) {
    if (devices.empty()) {
        return {};
    }
    const auto all_within = [&](double seconds) {
        double sum = 0;
        for (const UnequalDevice& device : devices) {
            sum += tiles_within(device, seconds);
        }
        return sum;
    };
    double less = 0;
    double enough = 1e-6;
    while (all_within(enough) < tiles) {
        less = enough;
        enough *= 2;
    }
    constexpr int kHalvings = 40;
    for (int i = 0; i < kHalvings; ++i) {
        const double middle = (less + enough) / 2;
        (all_within(middle) < tiles ? less : enough) = middle;
    }
    std::vector<double> speeds;
    speeds.reserve(devices.size());
    for (const UnequalDevice& device : devices) {
        speeds.push_back(tiles_within(device, enough) / enough);
    }
    return speeds;
}

namespace {

// Whether shares of an earlier run hold for drives that have these speeds: all that take part do.
bool may_keep(const PlacedSettings& settings, const std::vector<double>& known, int ranks) {
    const std::vector<double> speeds = config::device_speeds(settings, ranks);
    std::size_t device = 0;
    for (const std::vector<config::Tier>& of_rank : config::tiers_per_rank(settings, ranks)) {
        for (const config::Tier tier : of_rank) {
            const bool differs = tier == config::Tier::drive && known.at(device) > 0 &&
                                 known[device] != speeds[device];
            if (tier == config::Tier::gpu || (differs && !measures_speeds(settings))) {
                return false;
            }
            ++device;
        }
    }
    return true;
}

}  // namespace

void resolve_speeds(const mpi::Communicator& world, PlacedSettings& settings, const Layout& layout,
                    const std::vector<double>& known) {
    const bool is_auto = !settings.csd.tiers.memory;
    // Less is free now than before the run's own state lay there.
    if (is_auto && !known.empty() && may_keep(settings, known, world.size())) {
        settings.speeds = known;
        return;
    }
    resolve_memory(world, settings);
    const mpi::Topology nodes = discover_nodes(world, settings);
    resolve_all_tiers(settings, layout.elems, nodes);  // refuses before anything is written
    if (measures_speeds(settings)) {
        const shard::DeviceMap devices(config::devices_per_rank(settings, world.size()));
        settings.speeds = std::ssize(known) == devices.devices()
                              ? known
                              : measured_speeds(world, settings, layout, nodes);
        resolve_all_tiers(settings, layout.elems, nodes);
    }
}

std::vector<std::string> describe_speeds(const PlacedSettings& settings,
                                         const shard::Ownership& owners) {
    std::vector<std::string> lines;
    if (measures_speeds(settings) && !settings.speeds.empty()) {
        lines.push_back(describe_measured(settings, owners));
    } else if (settings.csd.speed.empty()) {
        lines.emplace_back(
            R"(csd.speed "auto": equal shares, cards and mode base are not measured)");
    }
    const std::vector<std::string> of_tiers = describe_tiers(settings, owners);
    lines.insert(lines.end(), of_tiers.begin(), of_tiers.end());
    return lines;
}

}  // namespace nearstep::engine
