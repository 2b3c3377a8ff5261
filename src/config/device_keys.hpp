// Keys of devices, their state and their parts.
#pragma once

#include "config/key.hpp"

#include <vector>

namespace nearstep::config {

// The keys point into the settings, which must outlive them.
std::vector<Key> device_keys(CsdSettings& csd);
std::vector<Key> tier_keys(CsdSettings& csd);
std::vector<Key> state_keys(CsdSettings& csd);
// Those that only cards use.
std::vector<Key> card_keys(CsdSettings& csd);
// Speed and endurance of a device's parts.
std::vector<Key> part_keys(CsdSettings& csd);

}  // namespace nearstep::config
