// A device that only moves: the reads and writes of an emulated device, without its engine.
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
    std::string file;  // made or replaced
    std::vector<shard::Subgroup> subgroups;
    csd::StateFormat state = csd::StateFormat::fp32;  // decides the sizes alone
    int slots = 3;
    store::IoKind io = store::IoKind::automatic;
};

// Reads an extent of one generation and writes it, as it is, as the next one: under a transfer
// handler it makes the requests of an emulated device near storage, at the same offsets and sizes
// and in the same order. It takes no gradients, updates nothing and delivers nothing: the ceiling
// of that device. Throws as csd::make_emulated_device.
std::unique_ptr<csd::Device> make_raw_device(const RawDeviceSettings& settings);

}  // namespace nearstep::bench
