#include "train/devices.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/team.hpp"
#include "config/hosts.hpp"
#include "config/load.hpp"
#include "config/placement.hpp"
#include "csd/card_device.hpp"
#include "csd/emulated_device.hpp"
#include "csd/state_format.hpp"
#include "csd/state_layout.hpp"
#include "csd/traced_device.hpp"
#include "fpga/host/pairing.hpp"
#include "store/volume.hpp"
#include "train/restart.hpp"
#include "train/site_links.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace nearstep::train {

namespace {

// Its position in csd.path.
std::size_t place_of_device(const config::Run& run, std::size_t local) {
    const std::size_t place =
        local < run.csd.places.size() ? static_cast<std::size_t>(run.csd.places[local]) : local;
    return place % run.csd.path.size();
}

const std::string& folder_of_device(const config::Run& run, std::size_t local) {
    return run.csd.path[place_of_device(run, local)];
}

// The card that shares a PCIe switch with the folder's drive, or that the site names beside it.
std::string card_of_device(const config::Run& run, std::size_t local) {
    if (!run.csd.cards.empty()) {
        return run.csd.cards[place_of_device(run, local)];
    }
    const std::string& folder = folder_of_device(run, local);
    const fpga::Pairing pairing = fpga::find_card_beside(folder);
    if (pairing.card.empty()) {
        throw ConfigError(text("No card is known for the folder ", folder, " (", pairing.obstacle,
                               "): name the card beside each folder of csd.path in csd.cards, or "
                               "set csd.device = \"emulated\"."));
    }
    return pairing.card;
}

// In the names of the files of the set.
std::string infix_of(int set) { return set == 0 ? "" : text(".set-", set); }

bool is_on_host(const config::Run& run) { return run.mode == config::Mode::base; }

// In mode base cards are not used, only the drives beside them.
bool is_on_card(const config::Run& run, int device) {
    return run.csd.device == "xrt" && !is_on_host(run) &&
           std::ranges::count(run.csd.host_engine, device) == 0;
}

template <typename Number>
std::string listed(const std::vector<Number>& numbers) {
    std::string out;
    for (const Number number : numbers) {
        out += text(out.empty() ? "" : ",", number);
    }
    return out;
}

// The same device with its card as the engine.
csd::CardDeviceSettings on_card(const csd::EmulatedDeviceSettings& settings, const config::Run& run,
                                std::size_t local) {
    fpga::require_cards();
    return {.name = settings.name,
            .file = settings.files.front(),
            .subgroups = settings.subgroups,
            .groups = settings.groups,
            .parameter_dtype = settings.parameter_dtype,
            .state = settings.state,
            .codec = settings.codec,
            .most_payload_bytes = settings.most_payload_bytes,
            .sources = settings.sources,
            .slots = settings.slots,
            .delivery = settings.delivery,
            .io = settings.io,
            .digest = settings.digest,
            .storage = settings.storage,
            .card = {.card = card_of_device(run, local),
                     .xclbin = run.csd.xclbin,
                     .longest_run = std::chrono::seconds(run.csd.run_timeout_s)}};
}

// Of which device owns which tiles, in which subgroups.
std::uint64_t digest_of(const shard::Partition& partition) {
    std::string facts;
    for (const shard::Subgroup& subgroup : partition.subgroups()) {
        facts += text(subgroup.device, ':', subgroup.tiles.begin, '-', subgroup.tiles.end, ';');
    }
    return xxh3(std::as_bytes(std::span(facts)));
}

// Headers of state files depend on it.
std::string name_of_device(int rank, int local) { return text("rank ", rank, " device ", local); }

// Of a rank, as its copy numbers them.
struct Devices {
    int first = 0;
    int count = 0;
};

Devices devices_in(const shard::Copy& copy, int rank) {
    const auto found = std::lower_bound(copy.ranks.begin(), copy.ranks.end(), rank);
    const auto position = static_cast<int>(found - copy.ranks.begin());
    return {copy.devices.first(position), copy.devices.count(position)};
}

std::vector<shard::Subgroup> subgroups_of(const shard::Copy& copy, int rank, int local) {
    std::vector<shard::Subgroup> subgroups;
    for (const std::size_t subgroup :
         copy.partition.subgroups_of(devices_in(copy, rank).first + local)) {
        subgroups.push_back(copy.partition.subgroups()[subgroup]);
    }
    return subgroups;
}

}  // namespace

std::vector<std::string> state_files(const config::Run& run, int rank, int ranks, int set) {
    const int devices = config::devices_per_rank(run, ranks)[static_cast<std::size_t>(rank)];
    std::vector<std::string> files;
    files.reserve(static_cast<std::size_t>(devices));
    for (int device = 0; device < devices; ++device) {
        files.push_back(text(folder_of_device(run, static_cast<std::size_t>(device)), "/rank-",
                             rank, ".device-", device, infix_of(set), ".state"));
    }
    return files;
}

std::vector<store::PlannedFile> planned_files(const config::Run& run, int rank, int ranks,
                                              const shard::Copy& copy) {
    const std::vector<std::string> files = state_files(run, rank, ranks);
    std::vector<store::PlannedFile> planned;
    for (int local = 0; local < devices_in(copy, rank).count; ++local) {
        const csd::StateLayout layout(subgroups_of(copy, rank, local),
                                      csd::parse_state_format(run.csd.state), is_on_host(run));
        const store::VolumeSettings volume{
            .files = is_on_host(run)
                         ? files
                         : std::vector<std::string>{files[static_cast<std::size_t>(local)]},
            .bytes = layout.total_bytes()};
        for (const std::string& file : volume.files) {
            planned.push_back({file, store::Volume::file_bytes(volume)});
        }
    }
    return planned;
}

std::vector<csd::StateVolumeSettings> state_volumes(const config::Run& run, int rank,
                                                    const shard::Copy& copy,
                                                    const std::vector<std::string>& files) {
    std::vector<csd::StateVolumeSettings> volumes;
    for (int local = 0; local < devices_in(copy, rank).count; ++local) {
        csd::StateVolumeSettings volume;
        volume.name = name_of_device(rank, local);
        volume.subgroups = subgroups_of(copy, rank, local);
        volume.state = csd::parse_state_format(run.csd.state);
        volume.has_gradients = is_on_host(run);
        volume.volume.files =
            is_on_host(run) ? files
                            : std::vector<std::string>{files.at(static_cast<std::size_t>(local))};
        volume.volume.io = store::parse_io_kind(run.csd.io);
        volumes.push_back(std::move(volume));
    }
    return volumes;
}

config::Run place_devices(const mpi::Communicator& world, const config::Run& run,
                          const std::string& granted) {
    const mpi::Topology nodes = mpi::discover_nodes(world);  // that have one csd.path
    const std::vector<int> devices = config::devices_per_rank(run, world.size());
    int before = 0;
    for (const int rank : nodes.ranks_beside(world.rank())) {
        before += rank < world.rank() ? devices[static_cast<std::size_t>(rank)] : 0;
    }
    config::Run placed = run;
    world.together([&] {
        placed.csd.places = config::places_of_devices(
            run, before, devices[static_cast<std::size_t>(world.rank())], granted);
    });
    return placed;
}

std::string layout_line(const config::Run& run, int ranks, const shard::Copy& copy) {
    const config::Spread spread = config::placement_of(run).optimizer;
    return text("ranks=", ranks, " devices=", listed(config::devices_per_rank(run, ranks)),
                " speeds=", listed(config::device_speeds(run, ranks)),
                " subgroup_tiles=", run.csd.subgroup_tiles,
                " update=", is_on_host(run) ? "host" : "storage", " state=", run.csd.state,
                spread == config::Spread::global ? "" : text(" copies=", config::name_of(spread)),
                " tiles_xxh3=", to_hex(digest_of(copy.partition)));
}

std::string manifest_path(const config::Run& run, int rank, int set) {
    return text(folder_of_device(run, 0), "/rank-", rank, infix_of(set), ".manifest");
}

std::optional<ManifestName> parse_manifest_name(const std::string& name) {
    constexpr std::string_view kPrefix = "rank-";
    ManifestName parsed;
    if (!name.starts_with(kPrefix) ||
        std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), parsed.rank).ec !=
            std::errc()) {
        return std::nullopt;
    }
    for (parsed.set = 0; parsed.set < kSets; ++parsed.set) {
        if (name == text(kPrefix, parsed.rank, infix_of(parsed.set), ".manifest")) {
            return parsed;
        }
    }
    return std::nullopt;
}

store::RankFiles files_of_rank(const config::Run& run, const mpi::Communicator& world, int set) {
    return {.states = state_files(run, world.rank(), world.size(), set),
            .manifest = manifest_path(run, world.rank(), set)};
}

std::vector<int> ranks_of_copy(const config::Run& run, int rank, const std::vector<int>& node_ranks,
                               int ranks) {
    switch (config::placement_of(run).optimizer) {
        case config::Spread::replicated:
            return {rank};
        case config::Spread::node:
            return node_ranks;
        case config::Spread::global:
            break;
    }
    std::vector<int> all(static_cast<std::size_t>(ranks));
    std::iota(all.begin(), all.end(), 0);
    return all;
}

shard::Copy make_copy(const config::Run& run, std::size_t parameters,
                      const std::vector<int>& copy_ranks, int ranks) {
    const shard::DeviceMap all(config::devices_per_rank(run, ranks));
    const std::vector<double> speeds_of_all = config::device_speeds(run, ranks);
    std::size_t subgroup_tiles = run.csd.subgroup_tiles;
    std::vector<int> counts;
    std::vector<double> speeds;
    for (const int rank : copy_ranks) {
        const auto first = speeds_of_all.begin() + all.first(rank);
        counts.push_back(all.count(rank));
        if (!is_on_host(run)) {
            speeds.insert(speeds.end(), first, first + counts.back());
        } else if (counts.back() > 0) {
            speeds.push_back(std::accumulate(first, first + counts.back(), 0.0));
        }
    }
    const int most = *std::max_element(counts.begin(), counts.end());
    if (most == 0) {
        throw ConfigError(
            text("placement.optimizer = \"", config::name_of(config::placement_of(run).optimizer),
                 "\" wants a copy of the optimizer state on the devices of ",
                 copy_ranks.size() == 1 ? "rank " : "ranks ", listed(copy_ranks),
                 R"(, which have none: give them some with csd.per_rank, or set it to "global".)"));
    }
    if (is_on_host(run)) {
        // A rank's subgroup is striped over all its drives, so that each moves as much of it as a
        // device near storage would.
        subgroup_tiles *= static_cast<std::size_t>(most);
        for (int& count : counts) {
            count = count > 0 ? 1 : 0;
        }
    }
    return {.ranks = copy_ranks,
            .devices = shard::DeviceMap(counts),
            .partition = shard::Partition(
                {.parameters = parameters, .speeds = speeds, .subgroup_tiles = subgroup_tiles})};
}

shard::Ownership make_ownership(const config::Run& run, std::size_t parameters,
                                const mpi::Topology& nodes) {
    std::vector<shard::Copy> copies;
    const auto ranks = static_cast<int>(nodes.group_of.size());
    for (int rank = 0; rank < ranks; ++rank) {
        const std::vector<int> together = ranks_of_copy(run, rank, nodes.ranks_beside(rank), ranks);
        if (together.front() == rank) {
            copies.push_back(make_copy(run, parameters, together, ranks));
        }
    }
    return shard::Ownership(std::move(copies));
}

csd::Delivery delivery(const config::Run& run) {
    return run.gather.codec == "delta" ? csd::Delivery::deltas : csd::Delivery::parameters;
}

csd::HandlerKind handler_kind(config::Mode mode) {
    return mode == config::Mode::su ? csd::HandlerKind::naive : csd::HandlerKind::overlapped;
}

bool overlaps_steps(config::Mode mode) {
    return mode == config::Mode::su_o || mode == config::Mode::su_o_c;
}

std::vector<std::unique_ptr<csd::Device>> make_devices(
    const config::Run& run, const mpi::Communicator& world, const shard::Ownership& owners,
    const GradientRoute& route, const DeviceSurroundings& around, trace::Traffic& traffic) {
    const int rank = world.rank();
    const shard::Copy& copy = owners.of_rank(rank);
    const RouteCodecs first = route.of_step(0);
    const int first_device =
        shard::DeviceMap(config::devices_per_rank(run, world.size())).first(rank);
    const std::vector<std::string> files = state_files(run, rank, world.size(), around.set);
    std::vector<std::unique_ptr<csd::Device>> devices;
    for (int local = 0; local < devices_in(copy, rank).count; ++local) {
        csd::EmulatedDeviceSettings settings;
        settings.name = name_of_device(rank, local);
        if (is_on_host(run)) {
            settings.place = csd::UpdatePlace::on_host;
            settings.threads = team_threads();
            settings.files = files;
        } else {
            settings.files = {files[static_cast<std::size_t>(local)]};
        }
        settings.subgroups = subgroups_of(copy, rank, local);
        settings.parameters = copy.partition.parameters();
        settings.groups = around.groups;
        settings.parameter_dtype = run.model.dtype;
        settings.state = csd::parse_state_format(run.csd.state);
        settings.delivery = delivery(run);
        settings.codec = first.handed != nullptr ? first.handed : first.sent;
        settings.most_payload_bytes = route.most_handed_bytes();
        settings.sources = route.sources();
        settings.slots = run.csd.slots;
        settings.io = store::parse_io_kind(run.csd.io);
        settings.storage = around.storage;
        if (is_on_card(run, first_device + local)) {
            devices.push_back(csd::make_card_device(
                on_card(settings, run, static_cast<std::size_t>(local)), traffic));
            continue;
        }
        settings.links = around.links;
        settings.updates_per_s = update_rate_of(run);
        devices.push_back(csd::make_emulated_device(settings, traffic));
        if (around.timeline != nullptr) {
            devices.back() =
                csd::make_traced_device(std::move(devices.back()), local, *around.timeline);
        }
    }
    return devices;
}

}  // namespace nearstep::train
