// A CSD with its own engine: an FPGA card that updates state moved between its memory and drive.
#pragma once

#include "base/dtype.hpp"
#include "codec/codec.hpp"
#include "csd/device.hpp"
#include "csd/engine.hpp"
#include "fpga/host/card.hpp"
#include "store/storage.hpp"
#include "store/subgroup_header.hpp"
#include "store/transport.hpp"
#include "trace/traffic.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace nearstep::csd {

// State files have the same format as those of emulated devices (docs/formats/state-file.md).
// Headers pass through host memory. Payloads move directly between drive and card if the drive can
// reach the card's memory (peer to peer). Otherwise they pass through the host, which is logged and
// counted on the host link, once per direction.
struct CardDeviceSettings {
    std::string name;
    std::string file;  // opened, or made if missing
    std::vector<shard::Subgroup> subgroups;
    GroupMap groups = {};  // of the whole vector; runs end at multiples of 16 elements
    Dtype parameter_dtype = Dtype::bf16;
    StateFormat state = StateFormat::fp32;
    const codec::Codec* codec = nullptr;  // outlives the device
    std::size_t most_payload_bytes = 0;   // largest among the codecs that use_codec() will name
    int sources = 1;                      // payloads per tile
    int slots = 3;
    Delivery delivery = Delivery::parameters;  // deltas: 16-bit parameters only
    store::IoKind io = store::IoKind::automatic;
    store::PayloadDigest digest = store::PayloadDigest::present;
    store::Storage* storage = nullptr;  // used for the file, outlives the device; null: the system
    fpga::CardSettings card;
};

// Opens the card, then the file, and keeps the file's content. One thread makes all devices of a
// process. Throws ConfigError if the card or the file cannot be used, or the card's memory is too
// small. `traffic` outlives the device.
std::unique_ptr<Device> make_card_device(const CardDeviceSettings& settings,
                                         trace::Traffic& traffic);

}  // namespace nearstep::csd
