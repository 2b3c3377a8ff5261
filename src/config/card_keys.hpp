// The keys of cards.
#pragma once

#include "config/key.hpp"

#include <vector>

namespace nearstep::config {

// Of [csd]; devices that are no cards leave them alone.
std::vector<Key> card_keys(CsdSettings& csd);

}  // namespace nearstep::config
