// Divides the state among GPU memory, host memory and drives. Called before an engine is made.
#include "engine/placement/tier_shares.hpp"

#include "base/error.hpp"
#include "base/machine.hpp"
#include "base/number_list.hpp"
#include "base/units.hpp"
#include "base/wording.hpp"
#include "csd/state_format.hpp"
#include "csd/state_layout.hpp"
#include "engine/placement/devices.hpp"
#include "memory/gpu.hpp"
#include "plan/kept_state.hpp"
#include "shard/partition.hpp"
#include "store/storage_folder.hpp"

#include <sys/statvfs.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace nearstep::engine {

using config::Tier;

namespace {

constexpr double kAll = std::numeric_limits<double>::max();

// Bytes that /dev/shm and the host have free.
double free_memory() {
    struct statvfs shared {};
    const double in_folder =
        ::statvfs("/dev/shm", &shared) == 0
            ? static_cast<double>(shared.f_bavail) * static_cast<double>(shared.f_frsize)
            : 0;
    return std::min(in_folder, static_cast<double>(machine_memory().available_bytes));
}

// Bytes of this rank's GPU that state may take with "auto".
double free_of_gpu(const mpi::Topology& machines, const EngineOptions& options, int rank) {
    if (!options.gpu || memory::gpus() == 0 || !options.fills_gpu) {
        return 0;
    }
    memory::use_gpu(*options.gpu);
    const auto gpus = static_cast<std::size_t>(memory::gpus());
    const std::size_t ranks_of_gpu = (machines.ranks_beside(rank).size() + gpus - 1) / gpus;
    const double free =
        static_cast<double>(memory::room_of_gpu().free_bytes) / static_cast<double>(ranks_of_gpu);
    return config::kTierShareOfFree *
           std::max(0.0, free - static_cast<double>(options.gpu_work_bytes));
}

double least_of_ranks(const mpi::Communicator& world, double mine) {
    return std::ranges::min(world.all_gather(std::array{mine}));
}

// The bytes of one generation of these tiles' state.
double bytes_of(const PlacedSettings& settings, std::size_t tiles) {
    return static_cast<double>(csd::state_bytes(settings.csd.state, tiles));
}

// How many generations a tier keeps. A few spare places serve all subgroups where nobody returns to
// the older one, as in GPU memory.
double generations_in(const PlacedSettings& settings, Tier tier) {
    const bool is_once =
        tier == Tier::gpu || plan::keeping_of(settings, false) == csd::Keeping::once;
    return is_once ? 1 : csd::StateLayout::kPlaces;
}

}  // namespace

double four_digits(double value) {
    const double unit = std::pow(10.0, std::floor(std::log10(value)) - 3);
    return std::round(value / unit) * unit;
}

void resolve_gpu(const mpi::Communicator& world, PlacedSettings& settings,
                 const EngineOptions& options) {
    std::optional<double>& gb = settings.csd.tiers.gpu;
    if (!config::is_used(gb)) {
        return;
    }
    const bool computes = world.rank() < config::computing_ranks(settings, world.size());
    const bool has_gpu = options.gpu && memory::gpus() > 0;
    if (!gb) {
        const mpi::Topology machines = mpi::set_apart_from(
            mpi::discover_nodes(world), config::computing_ranks(settings, world.size()));
        const double least =
            least_of_ranks(world, computes ? free_of_gpu(machines, options, world.rank()) : kAll);
        gb = settings.csd.durability == config::Durability::step
                 ? 0
                 : std::min(least / 1e9, settings.csd.tiers.most_gpu);
        return;
    }
    world.together([&] {
        if (computes && !has_gpu) {
            throw ConfigError(text("csd.tiers.gpu = ", *gb, " keeps state in GPU memory, but rank ",
                                   world.rank(),
                                   " computes without a GPU: set csd.tiers.gpu = 0, or start it "
                                   "where it has one."));
        }
    });
}

void resolve_memory(const mpi::Communicator& world, PlacedSettings& settings) {
    std::optional<double>& gb = settings.csd.tiers.memory;
    if (gb) {
        return;
    }
    const mpi::Topology machines = mpi::discover_nodes(world);
    const std::vector<int> drives = config::drives_per_rank(settings, world.size());
    const auto has_drives = [&](int rank) { return drives[static_cast<std::size_t>(rank)] > 0; };
    const auto holders =
        static_cast<double>(std::ranges::count_if(machines.ranks_beside(world.rank()), has_drives));
    const double mine =
        has_drives(world.rank()) ? config::kTierShareOfFree * free_memory() / holders : kAll;
    gb = std::min(least_of_ranks(world, mine) / 1e9, settings.csd.tiers.most_memory);
}

void resolve_tiers(PlacedSettings& settings, std::size_t elems, const std::vector<int>& copy_ranks,
                   int ranks) {
    struct Share {
        Tier tier;
        double gb;
        std::vector<std::size_t> devices = {};
        double of_each = 0;
    };
    std::array shares{Share{Tier::gpu, settings.csd.tiers.gpu.value_or(0)},
                      Share{Tier::memory, settings.csd.tiers.memory.value_or(0)},
                      Share{Tier::drive, 0}};
    if (shares[0].gb == 0 && shares[1].gb == 0) {
        return;
    }
    const std::vector<std::vector<Tier>> tiers = config::tiers_per_rank(settings, ranks);
    const shard::DeviceMap devices(config::devices_per_rank(settings, ranks));
    for (const int rank : copy_ranks) {
        auto device = static_cast<std::size_t>(devices.first(rank));
        for (const Tier tier : tiers[static_cast<std::size_t>(rank)]) {
            std::ranges::find(shares, tier, &Share::tier)->devices.push_back(device++);
        }
    }
    const std::size_t tiles = shard::tiles_of(elems);
    const double all_bytes = bytes_of(settings, tiles);
    double rest = 1;
    for (Share& share : shares) {
        if (share.gb > 0 && !share.devices.empty()) {
            const auto count = static_cast<double>(share.devices.size());
            const double most = share.gb * 1e9 / generations_in(settings, share.tier) / all_bytes;
            share.of_each = std::min(most, rest / count);
            rest -= share.of_each * count;
        }
    }
    rest = rest * static_cast<double>(tiles) < 1 ? 0 : rest;
    const std::vector<std::size_t>& drives = shares[2].devices;
    if (rest > 0 && drives.empty()) {
        throw ConfigError(text("csd.tiers hold ", human_bytes((1 - rest) * all_bytes), " of ",
                               human_bytes(all_bytes), " of state on ", name_ranks(copy_ranks),
                               ", which have no drive for the rest: raise csd.tiers.gpu, or give "
                               "them drives with ",
                               Term::per_rank, "."));
    }
    std::vector<double> speeds = speeds_of_devices(settings, ranks);
    double of_drives = 0;
    for (const std::size_t drive : drives) {
        of_drives += speeds[drive];
        speeds[drive] = rest > 0 ? speeds[drive] : 0;
    }
    for (const Share& share : shares) {
        for (const std::size_t device : share.devices) {
            if (share.tier != Tier::drive) {
                const double speed = rest > 0 ? of_drives * share.of_each / rest : share.of_each;
                speeds[device] = speed > 0 ? four_digits(speed) : 0;
            }
        }
    }
    settings.speeds = speeds;
}

void resolve_all_tiers(PlacedSettings& settings, std::size_t elems, const mpi::Topology& nodes) {
    for (const std::vector<int>& copy : copies_of(settings, nodes).ranks_of) {
        resolve_tiers(settings, elems, copy, static_cast<int>(nodes.group_of.size()));
    }
}

std::vector<ReadAheadBytes> read_ahead_bytes(const config::EngineSettings& settings,
                                             const std::vector<Tier>& tiers,
                                             const std::vector<std::string>& state_files,
                                             const DeviceSurroundings& around) {
    std::vector<ReadAheadBytes> bytes(tiers.size());
    if (settings.csd.slots > 0 || !overlaps_steps(settings.mode) || around.ranks_beside == 0 ||
        around.links != nullptr) {
        return bytes;
    }
    constexpr std::size_t kShare = 8;  // of the free memory, as csd.slots says
    const auto ranks = static_cast<std::size_t>(around.ranks_beside);
    ReadAheadBytes of_rank{.host = machine_memory().available_bytes / kShare / ranks};
    if (around.gpu && around.fills_gpu) {
        const auto gpus = static_cast<std::size_t>(memory::gpus());
        of_rank.gpu = memory::room_of_gpu().free_bytes / kShare / ((ranks + gpus - 1) / gpus);
    }
    const bool may_map = around.storage == nullptr && settings.csd.io == store::IoKind::automatic;
    std::vector<std::size_t> mapped;
    std::vector<std::size_t> read;
    for (std::size_t device = 0; device < tiers.size(); ++device) {
        if (tiers[device] != Tier::gpu) {
            const std::string folder = store::folder_of(state_files.at(device));
            (may_map && store::lies_in_memory(folder) ? mapped : read).push_back(device);
        }
    }
    for (const std::size_t device : mapped) {
        bytes[device].gpu = of_rank.gpu / mapped.size();
    }
    for (const std::size_t device : read) {
        bytes[device].host = of_rank.host / read.size();
    }
    return bytes;
}

void check_memory_folder(const config::EngineSettings& settings) {
    if (config::is_used(settings.csd.tiers.memory)) {
        store::check_private_folder(config::memory_folder(settings));
    }
}

void make_memory_folder(const config::EngineSettings& settings) {
    if (config::is_used(settings.csd.tiers.memory)) {
        store::make_private_folder(config::memory_folder(settings));
    }
}

StateBytes state_in_tiers(const PlacedSettings& settings, const shard::Ownership& owners) {
    StateBytes state;
    if (settings.mode == config::Mode::base) {
        return state;
    }
    constexpr std::array kTiers = {&config::TierBytes::drive, &config::TierBytes::memory,
                                   &config::TierBytes::gpu};
    const std::vector<std::vector<Tier>> tiers = config::tiers_per_rank(settings, owners.ranks());
    for (int copy = 0; copy < owners.copies(); ++copy) {
        const shard::Replica& replica = owners.copy(copy);
        for (std::size_t place = 0; place < replica.ranks.size(); ++place) {
            config::TierBytes of_rank;
            int device = replica.devices.first(static_cast<int>(place));
            for (const Tier tier : tiers[static_cast<std::size_t>(replica.ranks[place])]) {
                double& bytes = tier == Tier::gpu      ? of_rank.gpu
                                : tier == Tier::memory ? of_rank.memory
                                                       : of_rank.drive;
                for (const shard::Subgroup& subgroup : replica.partition.subgroups_of(device)) {
                    bytes += bytes_of(settings, subgroup.tiles.size());
                }
                ++device;
            }
            for (const auto tier : kTiers) {
                state.most.*tier = std::max(state.most.*tier, of_rank.*tier);
                state.all.*tier += of_rank.*tier;
            }
        }
    }
    return state;
}

std::vector<std::string> describe_tiers(const PlacedSettings& settings,
                                        const shard::Ownership& owners) {
    config::TierBytes most = state_in_tiers(settings, owners).most;
    most.memory *= generations_in(settings, Tier::memory);
    most.drive *= generations_in(settings, Tier::drive);
    const bool begins_anew = settings.csd.durability == config::Durability::none;
    std::vector<std::string> lines;
    if (most.gpu > 0) {
        lines.push_back(text("state in GPU memory: ", human_bytes(most.gpu),
                             " of a rank; it survives nothing, so that ",
                             begins_anew ? "after a crash the run begins anew"
                                         : "a run goes on from its last checkpoint"));
    }
    if (most.memory > 0) {
        lines.push_back(text(
            "state in memory: ", human_bytes(most.memory), " of a rank in ",
            config::memory_folder(settings), "; it survives a killed process, but after a reboot ",
            begins_anew ? text("the run begins anew")
                        : text("or power loss the run goes on from the last checkpoint, with ",
                               Term::from)));
    }
    if (!lines.empty() && most.drive > 0) {
        lines.push_back(text("state on drives: ", human_bytes(most.drive), " of a rank",
                             settings.csd.durability == config::Durability::step
                                 ? "; it survives a power cut"
                                 : ""));
    }
    return lines;
}

}  // namespace nearstep::engine
