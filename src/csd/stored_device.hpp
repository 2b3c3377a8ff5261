// The parts that emulated devices and cards share: settings, state, and where parameters land.
#pragma once

#include "base/dtype.hpp"
#include "base/executor.hpp"
#include "codec/codec.hpp"
#include "csd/device.hpp"
#include "csd/state_volume.hpp"
#include "csd/update_engine.hpp"
#include "shaping/node_links.hpp"
#include "store/storage.hpp"
#include "store/subgroup_header.hpp"
#include "store/transport.hpp"
#include "trace/traffic.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nearstep::csd {

// near_storage: state moves on the device-internal link, payloads lie in the device's memory, new
// parameters cross the host link.
// on_host: state is striped over the files of all plain devices and crosses the host link, as do
// fp32 gradients, to storage and back (ZeRO-Infinity on RAID0: mode `base`).
// Traffic counters count state in its stored format, without subgroup headers. Transfers of a step,
// headers included, are limited to the rates of `links`; other transfers of state are not.
enum class UpdatePlace { near_storage, on_host };

struct DeviceSettings {
    std::string name;
    std::vector<std::string> files;  // several only with on_host
    std::vector<shard::Subgroup> subgroups;
    std::size_t parameters = 0;  // of the whole vector; elements beyond it are padding
    GroupMap groups = {};        // of the whole vector; a card's runs end at multiples of 16
    Dtype parameter_dtype = Dtype::bf16;
    StateFormat state = StateFormat::fp32;
    const codec::Codec* codec = nullptr;  // outlives the device
    std::size_t most_payload_bytes = 0;   // largest among the codecs that use_codec() will name
    int sources = 1;                      // payloads per tile
    std::size_t spare = 0;                // places, see StateLayout; near storage only
    std::vector<std::string> logs = {};   // with spare places: see StateVolumeSettings
    bool keeps_log = false;               // whether updates are logged: see Device::keep_update()
    int slots = 3;
    Delivery delivery = Delivery::parameters;  // deltas: near_storage and 16-bit parameters only
    store::IoKind io = store::IoKind::automatic;
    store::PayloadDigest digest = store::PayloadDigest::present;  // absent: for measurements
    store::Storage* storage = nullptr;  // used for the files, outlives the device; null: the system

    // The settings below are for emulated devices. A card ignores them.

    // Shares the updates of subgroups with the thread of each, except for deltas, and verifies and
    // seals them. It outlives the device, and may serve others.
    Executor* executor = nullptr;
    // Memory for more slots, which read state ahead or keep it; state in mapped memory needs none.
    std::size_t read_ahead_bytes = 0;
    // Memory of `gpu` for more slots, if the state is in mapped memory.
    std::size_t gpu_read_ahead_bytes = 0;
    UpdatePlace place = UpdatePlace::near_storage;
    // Helps to update state in mapped memory; it is this process's to use. Not with deltas, links
    // or updates_per_s.
    std::optional<int> gpu = std::nullopt;
    int helped = 1;  // devices that it helps at once
    // The links that a step's bytes cross; they outlive the device. null: links are not shaped.
    shaping::NodeLinks* links = nullptr;
    double updates_per_s = 0;  // limit of the engine in parameters; 0: no limit
};

// The files of the device, and the bytes that it reserves for each.
std::vector<store::PlannedFile> planned_files(const DeviceSettings& settings);

// Checks the settings that all kinds of device have, and the folders of the files. Throws
// ConfigError if one cannot be made or written or has too little space. Changes nothing.
void prepare_storage(const DeviceSettings& settings);

class StoredDevice : public Device {
public:
    // Opens and locks the files that are there; throws as store::Volume. `traffic` outlives this.
    StoredDevice(const DeviceSettings& settings, trace::Traffic& traffic);

    const std::string& name() const override { return settings_.name; }
    const std::vector<shard::Subgroup>& subgroups() const override { return settings_.subgroups; }
    int slots() const override { return settings_.slots; }
    std::int64_t most_repeated() const override { return state_.most_repeated(); }
    std::vector<std::uint64_t> written_bytes() const override {
        return state_.volume().written_bytes();
    }
    void claim() override { state_.claim(); }
    void withdraw() override { state_.withdraw(); }
    void belong_to(std::uint64_t state) override { state_.belong_to(state); }
    void reserve() override { state_.reserve(); }
    Ticket flush() override { return state_.volume().sync(); }
    void accept(std::int64_t generation) override { state_.accept(generation); }
    Ticket store_repeated(std::int64_t generation) override;
    void use_groups(const GroupMap& groups) override { settings_.groups = groups; }
    void read_state(std::size_t subgroup, std::int64_t generation,
                    const StateArrays& state) override {
        state_.read_state(subgroup, generation, state);
    }
    void write_state(std::size_t subgroup, std::int64_t generation,
                     const StateArrays& state) override {
        state_.write_state(subgroup, generation, state);
    }
    std::span<std::byte> room_for(std::size_t subgroup, std::int64_t generation,
                                  memory::Buffer& memory) override {
        return state_.room_for(subgroup, generation, memory);
    }
    void write_stored(std::size_t subgroup, std::int64_t generation,
                      memory::Buffer& memory) override {
        state_.write_stored(subgroup, generation, memory);
    }
    Ticket read_masters(std::size_t subgroup, std::int64_t generation, std::size_t first,
                        std::span<std::byte> to) override {
        return state_.read_masters(subgroup, generation, first, to);
    }

protected:
    const StateLayout& layout() const { return state_.layout(); }
    bool has_deltas() const { return settings_.delivery == Delivery::deltas; }
    std::size_t tile_parameter_bytes() const {
        return shard::kTileElems * size_bytes(settings_.parameter_dtype);
    }
    std::size_t message_room_bytes() const;
    // The place of the subgroup's parameters, or of its message, in `destination`.
    std::span<std::byte> place_of(std::span<std::byte> destination, std::size_t subgroup,
                                  std::size_t bytes) const;
    // "io_uring, direct"
    std::string describe_transport() const;

    DeviceSettings settings_;
    trace::Traffic* traffic_;
    StateVolume state_;
};

}  // namespace nearstep::csd
