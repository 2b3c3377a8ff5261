// Places a rank's devices and their files. Called before an engine is made, and by it.
#include "engine/placement/devices.hpp"

#include "base/error.hpp"
#include "base/number_list.hpp"
#include "base/units.hpp"
#include "base/wording.hpp"
#include "csd/card_device.hpp"
#include "csd/cpu_device.hpp"
#include "csd/gpu_device.hpp"
#include "csd/gradient_log.hpp"
#include "csd/state_layout.hpp"
#include "engine/placement/tier_shares.hpp"
#include "fpga/host/pairing.hpp"
#include "memory/shared_memory.hpp"
#include "plan/link_rates.hpp"
#include "store/names.hpp"
#include "store/volume.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <optional>
#include <system_error>
#include <utility>

namespace nearstep::engine {

namespace {

// Returns the position of the device's folder in csd.path.
std::size_t place_of_device(const PlacedSettings& settings, std::size_t local) {
    const std::size_t place =
        local < settings.places.size() ? static_cast<std::size_t>(settings.places[local]) : local;
    return place % settings.csd.path.size();
}

// The folder of csd.path in which the device's drive is mounted.
const std::string& folder_of_device(const PlacedSettings& settings, std::size_t local) {
    return settings.csd.path[place_of_device(settings, local)];
}

// The card in csd.cards or, without that, on the same PCIe switch as the folder's drive.
std::string card_of_device(const PlacedSettings& settings, std::size_t local) {
    if (!settings.csd.cards.empty()) {
        return settings.csd.cards[place_of_device(settings, local)];
    }
    const std::string& folder = folder_of_device(settings, local);
    const fpga::Pairing pairing = fpga::find_card_beside(folder);
    if (pairing.card.empty()) {
        throw ConfigError(text("No card is known for the folder ", folder, " (", pairing.obstacle,
                               "): name the card beside each folder of ", Term::path,
                               " in csd.cards, or set csd.device = \"emulated\"."));
    }
    return pairing.card;
}

constexpr std::size_t kManifestBytes = 64 * KiB;  // at most, of a rank without devices

bool is_on_host(const config::EngineSettings& settings) {
    return settings.mode == config::Mode::base;
}

// Mode base does not use cards, only the drives beside them.
bool is_on_card(const config::EngineSettings& settings, int device) {
    return settings.csd.device == config::DeviceKind::xrt && !is_on_host(settings) &&
           std::ranges::count(settings.csd.host_engine, device) == 0;
}

// Cards and GPUs decode the codecs that have kernels.
void require_kernels(const config::EngineSettings& settings, const GradientRoute& route,
                     const char* who, const char* instead) {
    if (!route.has_kernels()) {
        throw ConfigError(text(Term::codec, " is \"", config::name_of(settings.compress.codec),
                               "\", which ", who, " do not decode: set ", instead,
                               ", or another codec."));
    }
}

// State file headers contain this name.
std::string name_of_device(int rank, int local) { return text("rank ", rank, " device ", local); }

// A rank's devices, as its copy numbers them.
struct Devices {
    int first = 0;
    int count = 0;
};

Devices devices_in(const shard::Replica& copy, int rank) {
    const auto found = std::ranges::lower_bound(copy.ranks, rank);
    const auto position = static_cast<int>(found - copy.ranks.begin());
    return {copy.devices.first(position), copy.devices.count(position)};
}

const std::vector<shard::Subgroup>& subgroups_of(const shard::Replica& copy, int rank, int local) {
    return copy.partition.subgroups_of(devices_in(copy, rank).first + local);
}

// Returns those of the rank's `files` that belong to one device.
std::vector<std::string> files_of(const config::EngineSettings& settings,
                                  const std::vector<std::string>& files, int local) {
    return is_on_host(settings) ? files : std::vector{files.at(static_cast<std::size_t>(local))};
}

std::vector<std::string> logs_in(const PlacedSettings& settings, const std::string& folder,
                                 const std::string& state_file) {
    std::vector<std::string> logs;
    const std::string name = text(folder, "/", state_file.substr(state_file.rfind('/') + 1));
    for (std::size_t log = 0; settings.spare_places > 0 && log < settings.logs; ++log) {
        logs.push_back(store::log_of_state(name, log));
    }
    return logs;
}

csd::StateVolumeSettings volume_of(const PlacedSettings& settings, int rank,
                                   const shard::Replica& copy,
                                   const std::vector<std::string>& files, int local) {
    csd::StateVolumeSettings volume{
        .name = name_of_device(rank, local),
        .subgroups = subgroups_of(copy, rank, local),
        .state = settings.csd.state,
        .has_gradients = is_on_host(settings),
        .spare = settings.spare_places,
        .volume = {.files = files_of(settings, files, local), .io = settings.csd.io}};
    volume.logs = log_files(settings, volume.volume.files.front(), local);
    return volume;
}

// The folder of csd.log that has logs of the state; looks at folder `first` before the others.
std::optional<std::string> folder_with_logs(const PlacedSettings& settings,
                                            const std::string& state_file, std::size_t first) {
    const std::vector<std::string>& folders = settings.csd.log;
    for (std::size_t i = 0; settings.logs > 1 && i < folders.size(); ++i) {
        const std::string& folder = folders[(first + i) % folders.size()];
        const std::vector<std::string> logs = logs_in(settings, folder, state_file);
        std::error_code ignored;
        if (!logs.empty() && std::filesystem::exists(logs.front(), ignored)) {
            return folder;
        }
    }
    return std::nullopt;
}

// The logs of state that another run left: beside it, or in a folder that csd.log names now.
std::vector<std::string> present_logs(const PlacedSettings& settings,
                                      const csd::StateVolumeSettings& volume) {
    const std::string& state = volume.volume.files.front();
    return logs_in(settings, folder_with_logs(settings, state, 0).value_or(store::folder_of(state)),
                   state);
}

}  // namespace

// A device goes on with the logs that it has, wherever csd.log names their folder.
std::vector<std::string> log_files(const PlacedSettings& settings, const std::string& state_file,
                                   int local) {
    const std::vector<std::string>& folders = settings.csd.log;
    if (settings.logs == 1 || folders.empty()) {
        return logs_in(settings, store::folder_of(state_file), state_file);
    }
    const auto first = static_cast<std::size_t>(local) % folders.size();
    return logs_in(settings, folder_with_logs(settings, state_file, first).value_or(folders[first]),
                   state_file);
}

std::vector<config::Tier> tiers_of(const config::EngineSettings& settings, int rank, int ranks) {
    return config::tiers_per_rank(settings, ranks)[static_cast<std::size_t>(rank)];
}

std::vector<std::string> state_files(const PlacedSettings& settings, int rank, int ranks, int set) {
    const std::vector<config::Tier> tiers = tiers_of(settings, rank, ranks);
    std::vector<std::string> files;
    for (std::size_t device = 0; device < tiers.size(); ++device) {
        const std::string folder =
            tiers[device] == config::Tier::memory
                ? config::memory_folder(settings)
                : folder_of_device(settings, tiers[device] == config::Tier::drive ? device : 0);
        files.push_back(
            text(folder, "/", store::state_file_name(rank, static_cast<int>(device), set)));
    }
    return files;
}

std::vector<store::PlannedFile> planned_files(const PlacedSettings& settings, int rank, int ranks,
                                              const shard::Replica& copy, int set) {
    const std::vector<std::string> files = state_files(settings, rank, ranks, set);
    const std::vector<config::Tier> tiers = tiers_of(settings, rank, ranks);
    std::vector<store::PlannedFile> planned;
    for (int local = 0; local < devices_in(copy, rank).count; ++local) {
        if (tiers[static_cast<std::size_t>(local)] == config::Tier::gpu) {
            continue;
        }
        csd::StateVolumeSettings volume = volume_of(settings, rank, copy, files, local);
        for (const shard::Subgroup& subgroup : volume.subgroups) {
            volume.log_bytes += subgroup.tiles.size() * settings.log_tile_bytes;
        }
        std::ranges::move(csd::StateVolume::planned_files(volume), std::back_inserter(planned));
    }
    if (planned.empty()) {
        planned.push_back({manifest_path(settings, rank, set), kManifestBytes});
    }
    return planned;
}

std::vector<csd::StateVolumeSettings> state_volumes(const PlacedSettings& settings, int rank,
                                                    const shard::Replica& copy,
                                                    const std::vector<std::string>& files) {
    std::vector<csd::StateVolumeSettings> volumes;
    for (int local = 0; local < devices_in(copy, rank).count; ++local) {
        volumes.push_back(volume_of(settings, rank, copy, files, local));
        volumes.back().logs = present_logs(settings, volumes.back());
    }
    return volumes;
}

mpi::Topology discover_nodes(const mpi::Communicator& world,
                             const config::EngineSettings& settings) {
    return mpi::set_apart_from(mpi::discover_nodes(world, settings.exchange.ranks_per_node),
                               config::computing_ranks(settings, world.size()));
}

std::vector<double> speeds_of_devices(const PlacedSettings& settings, int ranks) {
    if (settings.speeds.empty()) {
        return config::device_speeds(settings, ranks);
    }
    expects(settings.speeds.size() ==
                static_cast<std::size_t>(
                    shard::DeviceMap(config::devices_per_rank(settings, ranks)).devices()),
            "speeds were resolved for these devices");
    return settings.speeds;
}

std::string manifest_path(const PlacedSettings& settings, int rank, int set) {
    return text(folder_of_device(settings, 0), "/", store::manifest_name(rank, set));
}

std::array<std::string, 2> program_state_paths(const PlacedSettings& settings, int rank, int set) {
    const std::string folder = folder_of_device(settings, 0);
    return {text(folder, "/", store::program_state_name(rank, set, 0)),
            text(folder, "/", store::program_state_name(rank, set, 1))};
}

store::RankFiles files_of_rank(const PlacedSettings& settings, const mpi::Communicator& world,
                               int set) {
    return {.states = state_files(settings, world.rank(), world.size(), set),
            .manifest = manifest_path(settings, world.rank(), set)};
}

config::Placement placement_on(const mpi::Topology& nodes, const config::EngineSettings& settings) {
    const auto ranks = static_cast<int>(nodes.group_of.size());
    config::RankCounts counts{.all = config::computing_ranks(settings, ranks)};
    const auto end = nodes.ranks_of.begin() + nodes.groups_below(counts.all);
    const auto [least, most] = std::minmax_element(
        nodes.ranks_of.begin(), end,
        [](const auto& one, const auto& other) { return one.size() < other.size(); });
    counts.of_node = static_cast<int>(most->size());
    counts.has_equal_nodes = least->size() == most->size();
    return config::resolved_placement(settings, counts);
}

mpi::Topology copies_of(const config::EngineSettings& settings, const mpi::Topology& nodes) {
    const auto ranks = static_cast<int>(nodes.group_of.size());
    const int computing = config::computing_ranks(settings, ranks);
    const int of_copy = settings.placement.optimizer.ranks();
    return of_copy == computing ? mpi::group_by(std::vector<int>(nodes.group_of.size(), 0))
                                : mpi::groups_of(nodes, of_copy, computing);
}

shard::Replica make_copy(const PlacedSettings& settings, std::size_t parameters,
                         const std::vector<int>& copy_ranks, int ranks) {
    const shard::DeviceMap all(config::devices_per_rank(settings, ranks));
    const std::vector<double> speeds_of_all = speeds_of_devices(settings, ranks);
    std::size_t subgroup_tiles = settings.csd.subgroup_tiles;
    std::vector<int> counts;
    std::vector<double> speeds;
    std::vector<int> nodes;
    for (const int rank : copy_ranks) {
        const auto first = speeds_of_all.begin() + all.first(rank);
        counts.push_back(all.count(rank));
        if (!is_on_host(settings)) {
            speeds.insert(speeds.end(), first, first + counts.back());
        } else if (counts.back() > 0) {
            speeds.push_back(std::accumulate(first, first + counts.back(), 0.0));
        }
        nodes.resize(speeds.size(),
                     settings.nodes.empty() ? 0 : settings.nodes[static_cast<std::size_t>(rank)]);
    }
    const int most = std::ranges::max(counts);
    if (most == 0) {
        throw ConfigError(text("placement.optimizer = ", settings.placement.optimizer.written(),
                               " wants a copy of the optimizer state on the devices of ",
                               name_ranks(copy_ranks), R"(, which have none: give them some with )",
                               Term::per_rank, R"(, or set it to "global".)"));
    }
    if (is_on_host(settings)) {
        // Striping a rank's subgroup over all its drives lets each drive move as many bytes as a
        // device near storage would.
        subgroup_tiles *= static_cast<std::size_t>(most);
        for (int& count : counts) {
            count = count > 0 ? 1 : 0;
        }
    }
    return {.ranks = copy_ranks,
            .devices = shard::DeviceMap(counts),
            .partition = shard::Partition({.parameters = parameters,
                                           .speeds = speeds,
                                           .nodes = nodes,
                                           .subgroup_tiles = subgroup_tiles})};
}

shard::Ownership make_ownership(const PlacedSettings& settings, std::size_t parameters,
                                const mpi::Topology& nodes) {
    std::vector<shard::Replica> copies;
    const auto ranks = static_cast<int>(nodes.group_of.size());
    for (const std::vector<int>& together : copies_of(settings, nodes).ranks_of) {
        copies.push_back(make_copy(settings, parameters, together, ranks));
    }
    return shard::Ownership(std::move(copies));
}

const std::vector<shard::Subgroup>& largest_device(const shard::Ownership& owners) {
    const std::vector<shard::Subgroup>* largest = &owners.copy(0).partition.subgroups_of(0);
    for (int copy = 0; copy < owners.copies(); ++copy) {
        const shard::Partition& partition = owners.copy(copy).partition;
        for (int device = 0; device < partition.devices(); ++device) {
            if (partition.subgroups_of(device).size() > largest->size()) {
                largest = &partition.subgroups_of(device);
            }
        }
    }
    return *largest;
}

csd::Delivery delivery(const config::EngineSettings& settings, ParameterHome parameters) {
    if (parameters == ParameterHome::state) {
        return csd::Delivery::none;
    }
    return settings.gather.codec == config::ParameterCodec::delta ? csd::Delivery::deltas
                                                                  : csd::Delivery::parameters;
}

csd::HandlerKind handler_kind(config::Mode mode) {
    return mode == config::Mode::su ? csd::HandlerKind::naive : csd::HandlerKind::overlapped;
}

bool overlaps_steps(config::Mode mode) {
    return mode == config::Mode::su_o || mode == config::Mode::su_o_c;
}

namespace {

// Makes one device. `device`: its number among all ranks' devices.
struct DeviceMaker {
    const PlacedSettings& settings;
    const GradientRoute& route;
    const DeviceSurroundings& around;
    trace::Traffic& traffic;

    std::unique_ptr<csd::Device> operator()(config::Tier tier, csd::DeviceSettings made, int local,
                                            int device) const {
        if (tier == config::Tier::gpu) {
            require_kernels(settings, route, "GPUs", "csd.tiers.gpu = 0");
            made.gpu = around.own_gpu;
            return csd::make_gpu_device(made, traffic);
        }
        if (is_on_card(settings, device)) {
            fpga::require_cards();
            require_kernels(settings, route, "cards", "csd.device = \"emulated\"");
            return csd::make_card_device(
                made,
                {.card = card_of_device(settings, static_cast<std::size_t>(local)),
                 .xclbin = settings.csd.xclbin,
                 .longest_run = settings.exchange.card_timeout()},
                traffic);
        }
        made.links = tier == config::Tier::drive ? around.links : nullptr;
        made.gpu = settings.csd.device == config::DeviceKind::emulated ? around.gpu : std::nullopt;
        made.updates_per_s = plan::update_rate_of(settings);
        return csd::make_cpu_device(made, traffic);
    }
};

}  // namespace

std::vector<std::unique_ptr<csd::Device>> make_devices(
    const PlacedSettings& settings, const mpi::Communicator& world, const shard::Ownership& owners,
    const GradientRoute& route, const DeviceSurroundings& around, trace::Traffic& traffic) {
    const int rank = world.rank();
    const shard::Replica& copy = owners.of_rank(rank);
    const RouteCodecs first = route.of_step(0);
    const int first_device =
        shard::DeviceMap(config::devices_per_rank(settings, world.size())).first(rank);
    const std::vector<std::string> files =
        around.files.empty() ? state_files(settings, rank, world.size(), around.set) : around.files;
    check_memory_folder(settings);
    std::vector<std::unique_ptr<csd::Device>> devices;
    const int count = devices_in(copy, rank).count;
    const std::vector<config::Tier> tiers = tiers_of(settings, rank, world.size());
    const std::vector<ReadAheadBytes> ahead = read_ahead_bytes(settings, tiers, files, around);
    const DeviceMaker make_device{settings, route, around, traffic};
    if (count == 0) {
        store::check_folders(planned_files(settings, rank, world.size(), copy));
    }
    for (int local = 0; local < count; ++local) {
        csd::DeviceSettings device;
        device.name = name_of_device(rank, local);
        device.place =
            is_on_host(settings) ? csd::UpdatePlace::on_host : csd::UpdatePlace::near_storage;
        device.files = files_of(settings, files, local);
        device.executor = around.executor;
        device.subgroups = subgroups_of(copy, rank, local);
        device.parameters = copy.partition.parameters();
        device.groups = around.groups;
        device.parameter_dtype = around.dtype;
        device.state = settings.csd.state;
        device.delivery = delivery(settings, around.parameters);
        device.codec = &first.to_devices();
        device.most_payload_bytes = route.most_handover_bytes();
        device.sources = route.sources();
        device.spare = tiers[static_cast<std::size_t>(local)] == config::Tier::gpu
                           ? csd::spare_places_of_device(count)
                           : settings.spare_places;
        device.logs = log_files(settings, device.files.front(), local);
        device.keeps_log = settings.log_tile_bytes > 0;
        device.slots = settings.csd.least_slots();
        device.io = settings.csd.io;
        device.storage = around.storage;
        device.read_ahead_bytes = ahead[static_cast<std::size_t>(local)].host;
        device.gpu_read_ahead_bytes = ahead[static_cast<std::size_t>(local)].gpu;
        device.helped = count;
        devices.push_back(make_device(tiers[static_cast<std::size_t>(local)], std::move(device),
                                      local, first_device + local));
        devices.back()->trace({.timeline = around.timeline, .number = local});
    }
    return devices;
}

}  // namespace nearstep::engine
