// The table of all keys: what a config, a site and --set may say, and where it goes.
#pragma once

#include "config/key.hpp"
#include "config/run.hpp"

#include <vector>

namespace nearstep::config {

// The keys in the order of print(), with targets in `run`, which must outlive them.
std::vector<Key> keys_of(Run& run);

}  // namespace nearstep::config
