// A CSD with its own engine: an FPGA card that updates state moved between its memory and drive.
#pragma once

#include "csd/stored_device.hpp"
#include "fpga/host/card.hpp"
#include "trace/traffic.hpp"

#include <memory>

namespace nearstep::csd {

// State files have the same format as those of emulated devices (docs/formats/state-file.md).
// Headers pass through host memory. Payloads move directly between drive and card if the drive can
// reach the card's memory (peer to peer). Otherwise they pass through the host, which is logged and
// counted on the host link, once per direction.
//
// Opens the card, then the file, and keeps the file's content. One thread makes all devices of a
// process. Throws ConfigError if the card or the file cannot be used, or the card's memory is too
// small. `traffic` outlives the device.
std::unique_ptr<Device> make_card_device(const DeviceSettings& settings,
                                         const fpga::CardSettings& card, trace::Traffic& traffic);

}  // namespace nearstep::csd
