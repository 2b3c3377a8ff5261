// Keys that describe a site: its links, its hosts, and what a plan needs.
#pragma once

#include "config/key.hpp"
#include "config/run.hpp"

#include <vector>

namespace nearstep::config {

// The keys point into the settings, which must outlive them.
std::vector<Key> link_keys(LinkSettings& link);
std::vector<Key> hosts_keys(HostsSettings& hosts);
std::vector<Key> launcher_keys(HostsSettings& hosts);
std::vector<Key> plan_node_keys(PlanSettings& plan);
std::vector<Key> plan_rate_keys(PlanSettings& plan);

}  // namespace nearstep::config
