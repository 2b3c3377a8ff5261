#include "train/devices.hpp"

#include "base/error.hpp"
#include "config/load.hpp"
#include "csd/emulated_device.hpp"
#include "csd/state_format.hpp"

#include <numeric>
#include <string>

namespace nearstep::train {

namespace {

bool is_on_host(const config::Run& run) { return run.mode == config::Mode::base; }

std::string state_file(const config::Run& run, int rank, int device) {
    const std::string& folder =
        run.csd.path[static_cast<std::size_t>(device) % run.csd.path.size()];
    return text(folder, "/rank-", rank, ".device-", device, ".state");
}

}  // namespace

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
    if (is_on_host(run)) {
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
        {.parameters = parameters, .speeds = speeds, .subgroup_tiles = run.csd.subgroup_tiles});
}

std::unique_ptr<codec::Codec> make_codec(const config::Run& run) {
    return codec::make_codec(
        {.name = run.compress.codec, .keep = run.compress.keep, .dtype = run.model.dtype});
}

csd::HandlerKind handler_kind(config::Mode mode) {
    return mode == config::Mode::su ? csd::HandlerKind::naive : csd::HandlerKind::overlapped;
}

std::vector<std::unique_ptr<csd::Device>> make_devices(
    const config::Run& run, const mpi::Communicator& world, const shard::Partition& partition,
    const shard::DeviceMap& map, const codec::Codec& codec, int sources, trace::Traffic& traffic) {
    const int rank = world.rank();
    const int plain_devices =
        config::devices_per_rank(run, world.size())[static_cast<std::size_t>(rank)];
    std::vector<std::unique_ptr<csd::Device>> devices;
    for (int local = 0; local < map.count(rank); ++local) {
        csd::EmulatedDeviceSettings settings;
        settings.name = text("rank ", rank, " device ", local);
        if (is_on_host(run)) {
            settings.place = csd::UpdatePlace::on_host;
            for (int device = 0; device < plain_devices; ++device) {
                settings.files.push_back(state_file(run, rank, device));
            }
        } else {
            settings.files.push_back(state_file(run, rank, local));
        }
        for (const std::size_t subgroup : partition.subgroups_of(map.first(rank) + local)) {
            settings.subgroups.push_back(partition.subgroups()[subgroup]);
        }
        settings.parameters = partition.parameters();
        settings.parameter_dtype = run.model.dtype;
        settings.state = csd::parse_state_format(run.csd.state);
        settings.codec = &codec;
        settings.sources = sources;
        settings.slots = run.csd.slots;
        devices.push_back(csd::make_emulated_device(settings, traffic));
    }
    return devices;
}

}  // namespace nearstep::train
