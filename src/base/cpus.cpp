#include "base/cpus.hpp"

#include <sched.h>

#include <cstddef>

namespace nearstep {

std::vector<int> usable_cpus() {
    cpu_set_t set;
    CPU_ZERO(&set);
    std::vector<int> cpus;
    if (::sched_getaffinity(0, sizeof set, &set) == 0) {
        for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
            if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) {
                cpus.push_back(cpu);
            }
        }
    }
    return cpus.empty() ? std::vector{0} : cpus;
}

}  // namespace nearstep
