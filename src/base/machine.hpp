// The machine of this process: its name, and the memory and CPUs that it may use, as /proc and the
// control groups (cgroups) of a container or a batch system leave them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace nearstep {

// Bytes of memory. Without a limit by cgroups they are the machine's.
struct MachineMemory {
    std::size_t total_bytes = 0;
    std::size_t available_bytes = 0;  // what can be used without swapping; 0: unknown
    bool is_limited = false;          // by a cgroup
};

// The machine's memory within the tightest limit of this process's cgroup and its ancestors, of
// version 1 or 2. Page cache that the kernel can drop counts as available. `root`: the folder that
// holds /proc and /sys; tests have one of their own.
MachineMemory machine_memory(const std::string& root = "");

// The machine's name in its network; "unknown" if the system does not say.
std::string own_host();

// Numbers of the CPUs in the calling thread's affinity mask, which cpusets limit too, ascending.
std::vector<int> usable_cpus();

// CPUs' worth of time that the cgroups grant: the tightest quota over its period; nullopt: no
// limit.
std::optional<double> cpu_quota(const std::string& root = "");

// Threads that can run at once: usable_cpus() within the whole CPUs of cpu_quota(), at least 1.
int usable_cores();

// Threads that all processes of this host can run at once. A process that is bound to CPUs counts
// all CPUs of the host.
int host_cores();

}  // namespace nearstep
