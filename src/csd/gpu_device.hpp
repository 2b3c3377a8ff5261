// A device whose state lies in the memory of a GPU, which updates it there: tier gpu of csd.tiers.
#pragma once

#include "csd/stored_device.hpp"
#include "trace/traffic.hpp"

#include <memory>

namespace nearstep::csd {

// Makes a device without files: its state is lost when the device ends. The device uses the
// settings name, subgroups, groups, formats, codec, sources, slots, delivery (not deltas), executor
// and gpu. Throws ConfigError if the GPU has too little free memory. `traffic` outlives the device.
std::unique_ptr<Device> make_gpu_device(const DeviceSettings& settings, trace::Traffic& traffic);

}  // namespace nearstep::csd
