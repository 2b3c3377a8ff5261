// The devices that Slurm gave to the hosts of a job, as generic resources csd.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace nearstep::config {

struct HostGrant {
    std::string host;
    std::string devices;  // positions in csd.path, as in "0-1,3", or kNoDevices
};

// The hosts in a list such as "node[1-2,7]".
using HostNames = std::function<std::vector<std::string>(const std::string& list)>;

// Reads what `scontrol show job -d` prints. Types of devices do not matter: csd:nvme:1(IDX:0) is
// device 0. Throws ConfigError if no host of the job has any, or if Slurm does not say which.
std::vector<HostGrant> parse_grants(const std::string& job, const HostNames& hosts_in);

// Asks Slurm about the job that this process is in. Empty if it is in none, if Slurm does not
// answer, or if its devices are not generic resources there. Throws like parse_grants().
std::vector<HostGrant> ask_slurm_for_grants();

// The name by which Slurm knows this host.
std::string host_in_slurm();

}  // namespace nearstep::config
