// What Linux tells about the machine, through /proc, /sys and system calls.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::doctor {

struct System {
    std::string host{};
    std::string kernel{};
    std::string processor{};              // its name; empty if the kernel does not tell
    std::vector<std::string> features{};  // those of the processor's flags that a part asks for
    int cpus = 0;                         // of the machine
    int usable_cpus = 0;                  // of this process
    std::size_t memory_bytes = 0;
    std::size_t available_bytes = 0;
    std::string huge_pages{};                 // "always", "madvise" or "never"; empty: not told
    std::optional<std::size_t> lock_bytes{};  // RLIMIT_MEMLOCK; none: no limit
    std::vector<std::string> gpus{};          // names that NVIDIA's kernel driver gives
};

System find_system();

// The words of `wanted` that stand in the line "flags" (x86) or "Features" (Arm) of the text of
// /proc/cpuinfo, in the order of `wanted`.
std::vector<std::string> find_features(const std::string& cpuinfo,
                                       const std::vector<std::string>& wanted);

// The word in brackets: "madvise" of "always [madvise] never"; empty if there is none.
std::string chosen_word(const std::string& choices);

}  // namespace nearstep::doctor
