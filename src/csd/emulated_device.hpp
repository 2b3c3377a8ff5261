// A CSD emulated on plain storage: files as its flash, host memory and host cores for the rest.
#pragma once

#include "base/dtype.hpp"
#include "base/executor.hpp"
#include "codec/codec.hpp"
#include "csd/device.hpp"
#include "csd/engine.hpp"
#include "link/node_links.hpp"
#include "store/storage.hpp"
#include "store/subgroup_header.hpp"
#include "store/transport.hpp"
#include "trace/traffic.hpp"

#include <cstddef>
#include <memory>
#include <optional>
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

struct EmulatedDeviceSettings {
    std::string name;
    std::vector<std::string> files;  // opened, or made if missing; several only with on_host
    std::vector<shard::Subgroup> subgroups;
    std::size_t parameters = 0;  // of the whole vector; elements beyond it are padding
    GroupMap groups = {};        // of the whole vector
    Dtype parameter_dtype = Dtype::bf16;
    StateFormat state = StateFormat::fp32;
    const codec::Codec* codec = nullptr;  // outlives the device
    std::size_t most_payload_bytes = 0;   // largest among the codecs that use_codec() will name
    int sources = 1;                      // payloads per tile
    int slots = 3;
    // Memory for more slots, which read state ahead or keep it; state in mapped memory needs none.
    std::size_t read_ahead_bytes = 0;
    // The same on `gpu`, for state in mapped memory.
    std::size_t gpu_read_ahead_bytes = 0;
    UpdatePlace place = UpdatePlace::near_storage;
    // Helps to update state in mapped memory; it is this process's to use. Not with deltas, links
    // or updates_per_s.
    std::optional<int> gpu = std::nullopt;
    // Shares the updates of subgroups with the thread of each, except for deltas, and verifies and
    // seals them. It outlives the device, and may serve others.
    Executor* executor = nullptr;
    Delivery delivery = Delivery::parameters;  // deltas: near_storage and 16-bit parameters only
    store::IoKind io = store::IoKind::automatic;
    store::PayloadDigest digest = store::PayloadDigest::present;  // absent: for measurements
    store::Storage* storage = nullptr;  // used for the files, outlives the device; null: the system
    // The links that a step's bytes cross; they outlive the device. null: links are not shaped.
    link::NodeLinks* links = nullptr;
    double updates_per_s = 0;  // limit of the engine in parameters; 0: no limit
};

// Memory of a slot for subgroups of so many tiles, without what deltas need.
std::size_t slot_bytes(StateFormat format, std::size_t tiles);

// How many subgroups of a device have a slot each that keeps their state: all, if they are no more
// than `if_all_fit`; else `otherwise`.
struct KeptSlots {
    std::size_t if_all_fit = 0;
    std::size_t otherwise = 0;
};
KeptSlots slots_that_keep(std::size_t read_ahead_bytes, std::size_t bytes_of_slot);

// Bytes that the device reserves, over all its files.
std::size_t storage_bytes(const EmulatedDeviceSettings& settings);

// Opens and locks the files and keeps their content. Throws ConfigError if a folder cannot be made
// or written or has too little space (before any other file is touched), IoError later. `traffic`
// outlives the device.
std::unique_ptr<Device> make_emulated_device(const EmulatedDeviceSettings& settings,
                                             trace::Traffic& traffic);

}  // namespace nearstep::csd
