// The table of all keys that a config, a site or --set may set.
#pragma once

#include "config/key.hpp"
#include "config/run_settings.hpp"

#include <string_view>
#include <vector>

namespace nearstep::config {

// The keys in the order of print(). Their targets are in `run`, which must outlive them.
std::vector<Key> keys_of(RunSettings& run);

// The keys that a site file may set: its links, its hosts, and what a plan needs.
std::vector<Key> link_keys(LinkSettings& link);
std::vector<Key> hosts_keys(HostsSettings& hosts);
std::vector<Key> plan_keys(PlanSettings& plan);

// Says what to write instead of a key of an earlier version, as a request; null if there was no
// such key.
const char* instead_of(std::string_view key);

}  // namespace nearstep::config
