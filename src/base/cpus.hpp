// The CPUs of this process.
#pragma once

#include <vector>

namespace nearstep {

// Numbers of the CPUs in the calling thread's affinity mask, ascending.
std::vector<int> usable_cpus();

}  // namespace nearstep
