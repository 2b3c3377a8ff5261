// The table of all keys that a config, a site or --set may set.
#pragma once

#include "config/key.hpp"
#include "config/run.hpp"

#include <string_view>
#include <vector>

namespace nearstep::config {

// The keys in the order of print(). Their targets are in `run`, which must outlive them.
std::vector<Key> keys_of(RunSettings& run);

// Their parts; the settings outlive them, too. Those of devices, of their state and tiers, those
// that only cards use, and the speed and endurance of a device's parts.
std::vector<Key> device_keys(CsdSettings& csd);
std::vector<Key> tier_keys(CsdSettings& csd);
std::vector<Key> state_keys(CsdSettings& csd);
std::vector<Key> card_keys(CsdSettings& csd);
std::vector<Key> part_keys(CsdSettings& csd);
// Those of a site: its links, its hosts, and what a plan needs.
std::vector<Key> link_keys(LinkSettings& link);
std::vector<Key> hosts_keys(HostsSettings& hosts);
std::vector<Key> launcher_keys(HostsSettings& hosts);
std::vector<Key> plan_node_keys(PlanSettings& plan);
std::vector<Key> plan_rate_keys(PlanSettings& plan);

// What to write instead of a key of an earlier version, as a request; null if there was none.
const char* instead_of(std::string_view key);

}  // namespace nearstep::config
