// The GPU that benches measure.
#pragma once

namespace nearstep::bench {

// Makes GPU 0 this thread's. Throws ConfigError if there is none.
void use_first_gpu();

}  // namespace nearstep::bench
