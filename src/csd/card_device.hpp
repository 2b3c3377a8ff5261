// A CSD with an engine of its own: a card with an FPGA, which updates state that moves between its
// memory and its drive.
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

// State files are those of emulated devices (docs/state-file.md). Headers pass through host memory;
// payloads do not, if drives reach the card's memory. If they do not, payloads are read and
// written by way of the host, which is logged and counted on the host link, each way once.
struct CardDeviceSettings {
    std::string name;
    std::string file;  // opened or made
    std::vector<shard::Subgroup> subgroups;
    GroupMap groups = {};  // of the whole vector; runs end at multiples of 16 elements
    Dtype parameter_dtype = Dtype::bf16;
    StateFormat state = StateFormat::fp32;
    const codec::Codec* codec = nullptr;  // outlives the device
    std::size_t most_payload_bytes = 0;   // of the codecs that use_codec() will name
    int sources = 1;                      // payloads per tile
    int slots = 3;
    Delivery delivery = Delivery::parameters;  // deltas: 16-bit parameters only
    store::IoKind io = store::IoKind::automatic;
    store::PayloadDigest digest = store::PayloadDigest::present;
    store::Storage* storage = nullptr;  // under the file, outlives the device; null: the system
    fpga::CardSettings card;
};

// Opens the card and then the file, whose content it leaves. All devices of a process are made by
// one thread. Throws ConfigError if one of them cannot be used or the card's memory does not do.
// `traffic` outlives the device.
std::unique_ptr<Device> make_card_device(const CardDeviceSettings& settings,
                                         trace::Traffic& traffic);

}  // namespace nearstep::csd
