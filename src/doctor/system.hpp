// What Linux reports about the machine through /proc, /sys and system calls.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::doctor {

struct SystemFacts {
    std::string host{};
    std::string kernel{};
    std::string processor{};              // empty if the kernel does not report it
    std::vector<std::string> features{};  // the processor's flags that some part needs
    int cpus = 0;                         // of the machine
    int usable_cpus = 0;                  // of this process
    std::size_t memory_bytes = 0;         // of the machine, or what a cgroup grants
    std::size_t available_bytes = 0;
    bool is_memory_limited = false;           // by a cgroup
    std::string huge_pages{};                 // "always", "madvise" or "never"; empty: unknown
    std::optional<std::size_t> lock_bytes{};  // RLIMIT_MEMLOCK; none: no limit
    std::vector<std::string> gpus{};          // names from NVIDIA's kernel driver
};

SystemFacts find_system();

// The words of `wanted` found in the line "flags" (x86) or "Features" (Arm) of /proc/cpuinfo, in
// the order of `wanted`.
std::vector<std::string> find_features(const std::string& cpuinfo,
                                       const std::vector<std::string>& wanted);

// The word in brackets: "madvise" in "always [madvise] never"; empty if there is none.
std::string chosen_word(const std::string& choices);

}  // namespace nearstep::doctor
