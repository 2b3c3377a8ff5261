// A device that only moves data: an emulated device's reads and writes without its engine.
#pragma once

#include "csd/device.hpp"
#include "csd/engine.hpp"
#include "store/transport.hpp"

#include <memory>
#include <string>
#include <vector>

namespace nearstep::bench {

struct RawDeviceSettings {
    std::string name;
    std::string file;  // created or replaced
    std::vector<shard::Subgroup> subgroups;
    csd::StateFormat state = csd::StateFormat::fp32;  // only decides the sizes
    int slots = 3;
    store::IoKind io = store::IoKind::automatic;
};

// Reads the extents of one generation and writes them unchanged as the next. Under a transfer
// handler it makes the same requests as an emulated device near storage: same offsets, sizes and
// order. It takes no gradients, updates nothing and delivers nothing, so it is that device's
// ceiling. Throws like csd::make_emulated_device.
std::unique_ptr<csd::Device> make_raw_device(const RawDeviceSettings& settings);

}  // namespace nearstep::bench
