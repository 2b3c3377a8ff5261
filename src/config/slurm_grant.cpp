// Reads which devices of its hosts a Slurm job has. Called by engine/placement/devices.cpp
// and the command granted.
#include "config/slurm_grant.hpp"

#include "base/command_line.hpp"
#include "base/error.hpp"
#include "base/machine.hpp"
#include "config/hosts.hpp"

#include <algorithm>
#include <cstdlib>
#include <regex>
#include <sstream>
#include <vector>

namespace nearstep::config {

namespace {

// Returns the output of `scontrol show`, whether or not the command succeeds.
std::string shown(std::vector<std::string> words) {
    words.insert(words.begin(), {"scontrol", "show"});
    return run_command(words, StandardError::dropped).output;
}

std::string environment(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
}

// Returns this process's job as scontrol names it, or nothing outside a job. A task of an array has
// the array's number, a "_" and the task's number, because scontrol shows all tasks for the array's
// number alone.
std::string own_job() {
    const std::string array = environment("SLURM_ARRAY_JOB_ID");
    return array.empty() ? environment("SLURM_JOB_ID")
                         : array + "_" + environment("SLURM_ARRAY_TASK_ID");
}

// The value behind NAME= in a line of scontrol's.
std::string value_in(const std::string& line, const std::string& name) {
    const std::size_t at = line.find(name + "=");
    if (at == std::string::npos) {
        return "";
    }
    const std::size_t start = at + name.size() + 1;
    return line.substr(start, line.find(' ', start) - start);
}

// "0-1,3" of "gpu:a100:4(IDX:0-3),csd:nvme:2(IDX:0-1),csd:sata:1(IDX:3)".
std::string devices_in(const std::string& resources) {
    static const std::regex granted(R"((?:^|,)csd(?::[^:,()]+)?:\d+\(IDX:([0-9][0-9,-]*)\))");
    std::string devices;
    for (std::sregex_iterator one(resources.begin(), resources.end(), granted), end; one != end;
         ++one) {
        devices += (devices.empty() ? "" : ",") + (*one)[1].str();
    }
    return devices;
}

bool names_devices(const std::string& resources) {
    static const std::regex some(R"((?:^|,)csd[:(])");
    return std::regex_search(resources, some);
}

[[noreturn]] void refuse_without_devices(const std::string& hosts) {
    throw ConfigError(text("Slurm gave this job no numbered devices on ", hosts,
                           ": ask for them with --gres=csd:N, and let gres.conf name a file for "
                           "each."));
}

std::vector<std::string> names_in(const std::string& list) {
    std::istringstream lines(shown({"hostnames", list}));
    std::vector<std::string> names;
    for (std::string name; std::getline(lines, name);) {
        names.push_back(name);
    }
    return names;
}

}  // namespace

std::vector<HostGrant> parse_grants(const std::string& job, const HostNames& hosts_in) {
    std::vector<HostGrant> grants;
    std::istringstream lines(job);
    for (std::string line; std::getline(lines, line);) {
        const std::size_t start = line.find_first_not_of(' ');
        if (start == std::string::npos || line.compare(start, 6, "Nodes=") != 0) {
            continue;
        }
        const std::string hosts = value_in(line, "Nodes");
        const std::string resources = value_in(line, "GRES");
        const std::string devices = devices_in(resources);
        if (devices.empty() && names_devices(resources)) {
            refuse_without_devices(hosts);
        }
        for (const std::string& host : hosts_in(hosts)) {
            grants.push_back({host, devices.empty() ? kNoDevices : devices});
        }
    }
    if (!grants.empty() && std::ranges::all_of(grants, [](const HostGrant& grant) {
            return grant.devices == kNoDevices;
        })) {
        refuse_without_devices(grants.front().host);
    }
    return grants;
}

std::vector<HostGrant> ask_slurm_for_grants() {
    const std::string job = own_job();
    if (job.empty()) {
        return {};
    }
    static const std::regex has_devices(R"(GresTypes\s*=\s*(\S*,)?csd(,|\s|$))");
    if (!std::regex_search(shown({"config"}), has_devices)) {
        return {};
    }
    return parse_grants(shown({"job", "-d", job}), names_in);
}

std::string host_in_slurm() {
    std::string name = environment("SLURMD_NODENAME");
    if (!name.empty()) {
        return name;
    }
    const std::string whole = own_host();
    return whole.substr(0, whole.find('.'));
}

}  // namespace nearstep::config
