#include "train/devices.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "config/hosts.hpp"
#include "config/load.hpp"
#include "csd/emulated_device.hpp"
#include "csd/state_format.hpp"
#include "csd/state_layout.hpp"
#include "mpi/topology.hpp"
#include "store/volume.hpp"
#include "train/site_links.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>

namespace nearstep::train {

namespace {

const std::string& folder_of_device(const config::Run& run, std::size_t local) {
    const std::size_t place =
        local < run.csd.places.size() ? static_cast<std::size_t>(run.csd.places[local]) : local;
    return run.csd.path[place % run.csd.path.size()];
}

bool is_on_host(const config::Run& run) { return run.mode == config::Mode::base; }

template <typename Number>
std::string listed(const std::vector<Number>& numbers) {
    std::string out;
    for (const Number number : numbers) {
        out += text(out.empty() ? "" : ",", number);
    }
    return out;
}

// Of which device owns which tiles, in which subgroups.
std::uint64_t digest_of(const shard::Partition& partition) {
    std::string facts;
    for (const shard::Subgroup& subgroup : partition.subgroups()) {
        facts += text(subgroup.device, ':', subgroup.tiles.begin, '-', subgroup.tiles.end, ';');
    }
    return xxh3(std::as_bytes(std::span(facts)));
}

}  // namespace

std::vector<std::string> state_files(const config::Run& run, int rank, int ranks) {
    const int devices = config::devices_per_rank(run, ranks)[static_cast<std::size_t>(rank)];
    std::vector<std::string> files;
    files.reserve(static_cast<std::size_t>(devices));
    for (int device = 0; device < devices; ++device) {
        files.push_back(text(folder_of_device(run, static_cast<std::size_t>(device)), "/rank-",
                             rank, ".device-", device, ".state"));
    }
    return files;
}

std::vector<store::PlannedFile> planned_files(const config::Run& run, int rank, int ranks,
                                              std::size_t parameters) {
    const shard::DeviceMap map = device_map(run, ranks);
    const shard::Partition partition = make_partition(run, parameters, ranks);
    const std::vector<std::string> files = state_files(run, rank, ranks);
    std::vector<store::PlannedFile> planned;
    for (int local = 0; local < map.count(rank); ++local) {
        std::vector<shard::Subgroup> subgroups;
        for (const std::size_t subgroup : partition.subgroups_of(map.first(rank) + local)) {
            subgroups.push_back(partition.subgroups()[subgroup]);
        }
        const csd::StateLayout layout(subgroups, csd::parse_state_format(run.csd.state),
                                      is_on_host(run));
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

config::Run place_devices(const mpi::Communicator& world, const config::Run& run,
                          const std::string& granted) {
    const mpi::Topology nodes = mpi::discover_nodes(world);
    const auto node =
        static_cast<std::size_t>(nodes.group_of[static_cast<std::size_t>(world.rank())]);
    const std::vector<int> devices = config::devices_per_rank(run, world.size());
    int before = 0;
    for (const int rank : nodes.ranks_of[node]) {
        before += rank < world.rank() ? devices[static_cast<std::size_t>(rank)] : 0;
    }
    config::Run placed = run;
    world.together([&] {
        placed.csd.places = config::places_of_devices(
            run, before, devices[static_cast<std::size_t>(world.rank())], granted);
    });
    return placed;
}

std::string layout_line(const config::Run& run, int ranks, const shard::Partition& partition) {
    return text("ranks=", ranks, " devices=", listed(config::devices_per_rank(run, ranks)),
                " speeds=", listed(config::device_speeds(run, ranks)),
                " subgroup_tiles=", run.csd.subgroup_tiles,
                " update=", is_on_host(run) ? "host" : "storage", " state=", run.csd.state,
                " tiles_xxh3=", to_hex(digest_of(partition)));
}

std::string manifest_path(const config::Run& run, int rank) {
    return text(folder_of_device(run, 0), "/rank-", rank, ".manifest");
}

shard::DeviceMap device_map(const config::Run& run, int ranks) {
    std::vector<int> counts = config::devices_per_rank(run, ranks);
    if (is_on_host(run)) {
        for (int& count : counts) {
            count = count > 0 ? 1 : 0;
        }
    }
    return shard::DeviceMap(counts);
}

shard::Partition make_partition(const config::Run& run, std::size_t parameters, int ranks) {
    std::vector<double> speeds = config::device_speeds(run, ranks);
    std::size_t subgroup_tiles = run.csd.subgroup_tiles;
    if (is_on_host(run)) {
        // A rank's subgroup is striped over all its drives, so that each moves as much of it as a
        // device near storage would.
        const std::vector<int> counts = config::devices_per_rank(run, ranks);
        subgroup_tiles *= static_cast<std::size_t>(*std::max_element(counts.begin(), counts.end()));
        const shard::DeviceMap plain(config::devices_per_rank(run, ranks));
        std::vector<double> of_rank;
        for (int rank = 0; rank < ranks; ++rank) {
            if (plain.count(rank) > 0) {
                const auto first = speeds.begin() + plain.first(rank);
                of_rank.push_back(std::accumulate(first, first + plain.count(rank), 0.0));
            }
        }
        speeds = of_rank;
    }
    return shard::Partition(
        {.parameters = parameters, .speeds = speeds, .subgroup_tiles = subgroup_tiles});
}

std::size_t Codecs::most_payload_bytes() const {
    return std::max(codec->payload_bytes(), warmup ? warmup->payload_bytes() : 0);
}

Codecs make_codecs(const config::Run& run) {
    Codecs codecs;
    codecs.codec = codec::make_codec({.name = run.compress.codec,
                                      .keep = run.compress.keep,
                                      .dtype = run.model.dtype,
                                      .rounding = codec::parse_rounding(run.compress.rounding)});
    if (run.compress.warmup_steps > 0) {
        codecs.warmup = codec::make_codec({.name = "dense", .dtype = run.model.dtype});
    }
    return codecs;
}

csd::Delivery delivery(const config::Run& run) {
    return run.gather.codec == "delta" ? csd::Delivery::deltas : csd::Delivery::parameters;
}

csd::HandlerKind handler_kind(config::Mode mode) {
    return mode == config::Mode::su ? csd::HandlerKind::naive : csd::HandlerKind::overlapped;
}

std::vector<std::unique_ptr<csd::Device>> make_devices(
    const config::Run& run, const mpi::Communicator& world, const shard::Partition& partition,
    const shard::DeviceMap& map, const Codecs& codecs, int sources,
    const DeviceSurroundings& around, trace::Traffic& traffic) {
    const int rank = world.rank();
    const std::vector<std::string> files = state_files(run, rank, world.size());
    std::vector<std::unique_ptr<csd::Device>> devices;
    for (int local = 0; local < map.count(rank); ++local) {
        csd::EmulatedDeviceSettings settings;
        settings.name = text("rank ", rank, " device ", local);
        if (is_on_host(run)) {
            settings.place = csd::UpdatePlace::on_host;
            settings.files = files;
        } else {
            settings.files = {files[static_cast<std::size_t>(local)]};
        }
        for (const std::size_t subgroup : partition.subgroups_of(map.first(rank) + local)) {
            settings.subgroups.push_back(partition.subgroups()[subgroup]);
        }
        settings.parameters = partition.parameters();
        settings.parameter_dtype = run.model.dtype;
        settings.state = csd::parse_state_format(run.csd.state);
        settings.delivery = delivery(run);
        settings.codec = codecs.codec.get();
        settings.most_payload_bytes = codecs.most_payload_bytes();
        settings.sources = sources;
        settings.slots = run.csd.slots;
        settings.io = store::parse_io_kind(run.csd.io);
        settings.storage = around.storage;
        settings.links = around.links;
        settings.updates_per_s = update_rate_of(run);
        devices.push_back(csd::make_emulated_device(settings, traffic));
    }
    return devices;
}

}  // namespace nearstep::train
