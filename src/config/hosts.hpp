// Assigns ranks to the hosts of a site.
#pragma once

#include "config/run_settings.hpp"

#include <string>
#include <vector>

namespace nearstep::config {

// The word that a batch system's grant has for a host without devices, such as one that only
// computes.
inline constexpr const char* kNoDevices = "none";

// Consecutive ranks on one host.
struct HostPart {
    std::string name;  // empty: this machine
    int first_rank = 0;
    int ranks = 0;
    int devices = 0;  // of all of its ranks
};

// The number of ranks that the site's hosts take.
int ranks_of_site(const RunSettings& run);

// Fills the hosts one after another, in the order of hosts.names; the last csd.storage_ranks are on
// hosts.storage, if the site has these. Throws ConfigError if there are too few hosts for the
// ranks, or too few devices on a host.
std::vector<HostPart> plan_hosts(const RunSettings& run, int ranks);

}  // namespace nearstep::config
