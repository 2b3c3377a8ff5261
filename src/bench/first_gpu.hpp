// Selects the GPU that the benchmarks measure.
#pragma once

namespace nearstep::bench {

// Selects GPU 0 for this thread. Throws ConfigError if there is none.
void use_first_gpu();

}  // namespace nearstep::bench
