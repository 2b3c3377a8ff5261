// Takes speeds from a trial or an earlier run, and agrees on them. Called before an engine is made.
#include "engine/placement/device_speeds.hpp"

#include "base/error.hpp"
#include "base/units.hpp"
#include "base/wording.hpp"
#include "csd/emulated_device.hpp"
#include "csd/state_format.hpp"
#include "engine/placement/devices.hpp"
#include "engine/placement/speed_trial.hpp"
#include "mpi/topology.hpp"
#include "shard/partition.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <span>

namespace nearstep::engine {

namespace {

constexpr std::size_t kMostListed = 16;

// Few enough digits to be the same after a layout line was printed and read.
double four_digits(double value) {
    const double unit = std::pow(10.0, std::floor(std::log10(value)) - 3);
    return std::round(value / unit) * unit;
}

std::string percent(double share) {
    std::array<char, 32> digits{};
    std::snprintf(digits.data(), digits.size(), "%.3g %%", 100 * share);
    return digits.data();
}

double tiles_of(const shard::Partition& partition, int device) {
    double tiles = 0;
    for (const std::size_t subgroup : partition.subgroups_of(device)) {
        tiles += static_cast<double>(partition.subgroups()[subgroup].tiles.size());
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

std::string describe_measured(const Placed& settings, const shard::Ownership& owners, int ranks) {
    const std::vector<int> drives = config::drives_per_rank(settings, ranks);
    const shard::DeviceMap devices(config::devices_per_rank(settings, ranks));
    std::string list;
    std::size_t listed = 0;
    for (int rank = 0; rank < ranks; ++rank) {
        for (int local = 0; local < devices.count(rank); ++local, ++listed) {
            if (listed >= kMostListed) {
                continue;
            }
            const auto place =
                static_cast<std::size_t>(devices.first(rank)) + static_cast<std::size_t>(local);
            const double speed = settings.speeds[place];
            const bool is_drive = local < drives[static_cast<std::size_t>(rank)];
            list += text(list.empty() ? "" : ", ", is_drive ? text(speed) : "in memory", " (",
                         percent(share_of(owners, rank, local)), ")");
        }
    }
    return text(
        R"(csd.speed "auto": tiles per second of each device in an update of this run, and its share of the state: )",
        list, listed > kMostListed ? text(" and ", listed - kMostListed, " more") : "");
}

}  // namespace

bool measures_speeds(const config::EngineSettings& settings) {
    return settings.csd.speed.empty() && settings.csd.device != config::DeviceKind::xrt &&
           settings.mode != config::Mode::base;
}

void settle_memory(Placed& settings, std::size_t elems, const std::vector<int>& copy_ranks,
                   int ranks) {
    if (settings.csd.memory_gb == 0) {
        return;
    }
    std::vector<double> speeds = speeds_of_devices(settings, ranks);
    const shard::DeviceMap devices(config::devices_per_rank(settings, ranks));
    double of_drives = 0;
    std::vector<std::size_t> in_memory;
    for (const int rank : copy_ranks) {
        const int last = devices.first(rank) + devices.count(rank) - 1;
        for (int device = devices.first(rank); device < last; ++device) {
            of_drives += speeds[static_cast<std::size_t>(device)];
        }
        if (devices.count(rank) > 0) {
            in_memory.push_back(static_cast<std::size_t>(last));
        }
    }
    constexpr double kGenerations = 2;
    const std::size_t tiles = shard::tiles_of(elems);
    const double all_bytes =
        kGenerations * static_cast<double>(csd::state_bytes(settings.csd.state, tiles));
    const double share = settings.csd.memory_gb * 1e9 / all_bytes;
    const double rest = 1 - share * static_cast<double>(in_memory.size());
    if (rest * static_cast<double>(tiles) < 1) {
        throw ConfigError(text("csd.memory_gb = ", settings.csd.memory_gb, " on each of ",
                               in_memory.size(), " ranks is not less than all state files (",
                               human_bytes(all_bytes), "): set csd.memory_gb = 0 and ", Term::path,
                               " to a folder in /dev/shm, or "
                               "lower it."));
    }
    for (const std::size_t device : in_memory) {
        speeds[device] = four_digits(of_drives * share / rest);
    }
    settings.speeds = speeds;
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

void settle_all_memory(Placed& settings, std::size_t elems, const mpi::Topology& nodes) {
    for (const std::vector<int>& copy : copies_of(settings, nodes).ranks_of) {
        settle_memory(settings, elems, copy, static_cast<int>(nodes.group_of.size()));
    }
}

// With what its slots keep of subgroups like these.
UnequalDevice with_slots(const config::EngineSettings& settings, const TrialSpeeds& speeds,
                         const shard::Partition& partition, int device) {
    UnequalDevice made{.of_read = speeds.of_read, .of_kept = speeds.of_kept};
    const std::vector<std::size_t>& subgroups = partition.subgroups_of(device);
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
// that were settled before. csd.memory_gb says what the devices in memory have.
void balance(Placed& settings, const std::vector<TrialSpeeds>& trials, std::size_t elems,
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

std::vector<double> measured_speeds(const mpi::Communicator& world, const Placed& settings,
                                    const SpeedsFor& what, const mpi::Topology& nodes) {
    const std::vector<TrialSpeeds> trials =
        measure_devices(world, settings, what.elems, what.dtype);
    Placed settled = settings;
    settled.speeds.clear();
    for (const TrialSpeeds& trial : trials) {
        settled.speeds.push_back(trial.of_read);
    }
    constexpr int kRounds = 4;  // a device's subgroups grow with its speed
    for (int round = 0; round < kRounds; ++round) {
        settle_all_memory(settled, what.elems, nodes);
        for (const std::vector<int>& copy : copies_of(settings, nodes).ranks_of) {
            balance(settled, trials, what.elems, copy, world.size());
        }
    }
    // Those of rank 0, because hosts may differ in cores and in mathematics.
    std::vector<double> speeds(trials.size(), 0.0);
    if (world.rank() == 0) {
        speeds = settled.speeds;
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

std::vector<double> settle_speeds(const mpi::Communicator& world, const Placed& settings,
                                  const SpeedsFor& what) {
    Placed settled = settings;
    const mpi::Topology nodes = discover_nodes(world, settings);
    settle_all_memory(settled, what.elems, nodes);  // refuses before anything is written
    if (measures_speeds(settings)) {
        settled.speeds =
            what.known.empty() ? measured_speeds(world, settings, what, nodes) : what.known;
        settle_all_memory(settled, what.elems, nodes);
    }
    return settled.speeds;
}

std::vector<std::string> describe_speeds(const Placed& settings, const shard::Ownership& owners) {
    int ranks = 0;
    for (int copy = 0; copy < owners.copies(); ++copy) {
        ranks += static_cast<int>(owners.copy(copy).ranks.size());
    }
    std::vector<std::string> lines;
    if (measures_speeds(settings) && !settings.speeds.empty()) {
        lines.push_back(describe_measured(settings, owners, ranks));
    } else if (settings.csd.speed.empty()) {
        lines.emplace_back(
            R"(csd.speed "auto": equal shares, cards and mode base are not measured)");
    }
    if (settings.csd.memory_gb > 0) {
        lines.push_back(text(
            "state in memory: ", human_bytes(settings.csd.memory_gb * 1e9), " of each rank in ",
            config::memory_folder(settings), "; it survives a killed process, but after a reboot ",
            settings.csd.durability == config::Durability::none
                ? text("the run begins anew")
                : text("or power loss the run goes on from the last checkpoint, with ",
                       Term::from)));
    }
    return lines;
}

}  // namespace nearstep::engine
