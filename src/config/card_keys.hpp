// The keys of accelerator cards.
#pragma once

#include "config/key.hpp"

#include <vector>

namespace nearstep::config {

// Keys of [csd] that only cards use.
std::vector<Key> card_keys(CsdSettings& csd);

}  // namespace nearstep::config
