// A CSD emulated on plain storage: files as its flash, host memory and host cores for the rest.
#pragma once

#include "csd/stored_device.hpp"
#include "trace/traffic.hpp"

#include <cstddef>
#include <memory>

namespace nearstep::csd {

// Memory of a slot for subgroups of so many tiles, without what deltas need.
std::size_t slot_bytes(StateFormat format, std::size_t tiles);

// How many subgroups of a device have a slot each that keeps their state: all, if they are no more
// than `if_all_fit`; else `otherwise`.
struct KeptSlots {
    std::size_t if_all_fit = 0;
    std::size_t otherwise = 0;
};
KeptSlots slots_that_keep(std::size_t read_ahead_bytes, std::size_t bytes_of_slot);

// Opens and locks the files and keeps their content. Throws ConfigError if a folder cannot be made
// or written or has too little space (before any other file is touched), IoError later. `traffic`
// outlives the device.
std::unique_ptr<Device> make_cpu_device(const DeviceSettings& settings, trace::Traffic& traffic);

}  // namespace nearstep::csd
