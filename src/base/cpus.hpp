// The CPUs of this process.
#pragma once

#include <vector>

namespace nearstep {

// Numbers of the CPUs that this process may run on, ascending; of the calling thread's affinity.
std::vector<int> usable_cpus();

}  // namespace nearstep
