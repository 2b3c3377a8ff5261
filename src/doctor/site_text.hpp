// A site of what its hosts have, as a TOML file, and a list of what is missing in it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::doctor {

// Bytes, and bytes or operations per second; 0: unknown. `node`: the nearest NUMA node, by Linux's
// number; nullopt: several are as near, or Linux does not say.
struct DriveFacts {
    std::string folder;       // for csd.path
    std::string device = {};  // "/dev/nvme0n1"
    double rate = 0;          // reads and writes together
    double free = 0;
    double rated = 0;           // that may be written in its life
    std::string obstacle = {};  // why it was not measured
    std::optional<int> node = {};
};

struct AdapterFacts {
    std::string name;
    std::optional<int> node = {};
};

struct HostFacts {
    std::string host;
    int cores = 1;
    int gpus = 0;
    std::string gpu = {};   // its name; empty: the CPU computes
    double operations = 0;  // of matrix products: by data sheet, or of a CPU as measured
    double gpu_memory = 0;  // the GPU's; without one the host's
    double gpu_memory_rate = 0;
    double gpu_link = 0;
    double memory = 0;
    double memory_rate = 0;
    std::vector<DriveFacts> drives = {};
    std::string interface = {};
    double network = 0;  // each direction
    std::vector<int> nodes = {0};
    std::vector<std::optional<int>> gpu_nodes = {};  // by the GPUs' numbers
    std::vector<AdapterFacts> adapters = {};
};

nlohmann::json to_json(const HostFacts& facts);
// Throws Error for a text that to_json() did not make, or with values that no host has.
HostFacts host_facts(const std::string& json);

struct SiteText {
    std::string toml;
    std::vector<std::string> missing;  // sentences: the key, why it is missing, and what to do
};

// The facts that the user gives of a site.
struct SiteNames {
    std::string site;
    std::string remote = "ssh";  // see config::HostsSettings
    bool has_hosts = false;      // named by the user, and not only this machine or mpirun's
};

// Hosts are alike in a site: of what differs it has the least, and says so. `hosts` is not empty.
SiteText site_text(const SiteNames& names, const std::vector<HostFacts>& hosts);

// Folders for state on mounted drives, by a table such as /proc/self/mounts: one for each block
// device that is writable, without the root's and the boot loader's.
std::vector<std::string> folders_of_mounts(const std::string& mounts);

struct NetworkFacts {
    std::string interface;  // the fastest one for IP; empty: none tells a rate
    double rate = 0;        // of all active InfiniBand ports, else of the interface
};

// `sys`: the folder of /sys; tests have one of their own.
NetworkFacts find_network(const std::filesystem::path& sys = "/sys");

}  // namespace nearstep::doctor
