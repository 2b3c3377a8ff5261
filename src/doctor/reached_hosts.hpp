// Asks the hosts of a site what they have, through the program by which the launchers reach them.
#pragma once

#include "doctor/site_text.hpp"

#include <string>
#include <vector>

namespace nearstep::doctor {

// The word before a host's findings in the line that has them, among all that the host prints.
inline constexpr const char* kFindings = "findings ";

// Refuses names that a site or a command line would read as something else, and a name given twice.
// Throws ConfigError.
void check_host_names(const std::vector<std::string>& hosts);

struct AskedHosts {
    std::vector<HostFacts> found;     // in the order of the hosts that answered
    std::vector<std::string> faults;  // a sentence for each host that did not
};

// Runs `command` in the current folder on all hosts at once, by `remote HOST LINE`. A host has 60 s
// to answer at all, and ten minutes to print its findings. Throws ConfigError if there is no such
// program as `remote`.
AskedHosts ask_hosts(const std::vector<std::string>& hosts, const std::string& remote,
                     const std::vector<std::string>& command);

}  // namespace nearstep::doctor
