// The files of a device and the places of what it delivers. The base of emulated devices and cards,
// which call it.
#include "csd/stored_device.hpp"

#include "base/error.hpp"
#include "codec/delta.hpp"
#include "store/storage_folder.hpp"

#include <algorithm>

namespace nearstep::csd {

namespace {

std::size_t log_bytes_of(const DeviceSettings& settings) {
    std::size_t tiles = 0;
    for (const shard::Subgroup& subgroup : settings.subgroups) {
        tiles += subgroup.tiles.size();
    }
    return tiles * PayloadMemory::tile_bytes(
                       std::max(settings.most_payload_bytes, settings.codec->payload_bytes()),
                       static_cast<std::size_t>(settings.sources));
}

StateVolumeSettings unshaped_volume_of(const DeviceSettings& settings) {
    return {.name = settings.name,
            .subgroups = settings.subgroups,
            .state = settings.state,
            .has_gradients = settings.place == UpdatePlace::on_host,
            .spare = settings.spare,
            .logs = settings.logs,
            .log_bytes = settings.keeps_log ? log_bytes_of(settings) : 0,
            .digest = settings.digest,
            .checks_masters = settings.delivery == Delivery::none,
            .volume = {.files = settings.files, .io = settings.io, .storage = settings.storage}};
}

StateVolumeSettings volume_of(const DeviceSettings& settings) {
    StateVolumeSettings state = unshaped_volume_of(settings);
    if (settings.links != nullptr) {
        const auto place = settings.place == UpdatePlace::on_host
                               ? shaping::DrivePlace::behind_host_link
                               : shaping::DrivePlace::near_engine;
        for (std::size_t file = 0; file < settings.files.size(); ++file) {
            state.volume.paths.push_back(settings.links->add_drive(place));
        }
        state.volume.pacer = &settings.links->pacer();
    }
    return state;
}

}  // namespace

std::vector<store::PlannedFile> planned_files(const DeviceSettings& settings) {
    return StateVolume::planned_files(unshaped_volume_of(settings));
}

void prepare_storage(const DeviceSettings& settings) {
    const bool is_on_host = settings.place == UpdatePlace::on_host;
    expects(settings.files.size() == 1 || (is_on_host && !settings.files.empty()),
            "a device near storage has one file, one on the host has one or more");
    expects(settings.slots >= 1, "a device has a slot");
    expects(is_on_host || (settings.codec != nullptr && settings.sources >= 1),
            "a device near storage has a codec and a source of gradients");
    expects(settings.spare == 0 || (!is_on_host && settings.links == nullptr),
            "places are shared near storage, by links that are not shaped");
    expects(settings.logs.empty() || settings.spare > 0, "a log replaces a second place");
    expects(!settings.keeps_log || !settings.logs.empty(), "an update is kept in a log");
    expects(settings.logs.size() < 2 || settings.keeps_log,
            "state that is stored in turns needs all updates between");
    expects(settings.delivery != Delivery::deltas ||
                (!is_on_host && size_bytes(settings.parameter_dtype) == sizeof(std::uint16_t)),
            "deltas leave devices near storage and are of 16-bit parameters");
    store::check_folders(planned_files(settings));
}

StoredDevice::StoredDevice(const DeviceSettings& settings, trace::Traffic& traffic)
    : settings_(settings), traffic_(&traffic), state_(volume_of(settings), traffic) {}

Ticket StoredDevice::store_repeated(std::int64_t generation) {
    Ticket stored;
    for (const std::size_t subgroup : state_.take_repeated(generation)) {
        stored.add(settings_.executor->submit(
            [this, subgroup, generation] { state_.store_repeated(subgroup, generation); }));
    }
    return stored;
}

std::size_t StoredDevice::message_room_bytes() const {
    return codec::message_room_bytes(layout().most_tiles());
}

std::span<std::byte> StoredDevice::place_of(std::span<std::byte> destination, std::size_t subgroup,
                                            std::size_t bytes) const {
    const std::size_t begin =
        has_deltas() ? subgroup * message_room_bytes()
                     : settings_.subgroups[subgroup].tiles.begin * tile_parameter_bytes();
    expects(begin + bytes <= destination.size(), "the destination has room for the subgroup");
    return destination.subspan(begin, bytes);
}

std::string StoredDevice::describe_transport() const {
    return text(store::name_of(state_.volume().io()),
                state_.volume().is_direct() ? ", direct" : ", page cache");
}

}  // namespace nearstep::csd
