#include "bench/first_gpu.hpp"

#include "base/error.hpp"
#include "memory/gpu.hpp"

namespace nearstep::bench {

void use_first_gpu() {
    if (memory::gpus() == 0) {
        throw ConfigError(
            "--device cuda wants a GPU, and this program finds none: run it where there is one, "
            "built with CUDA.");
    }
    memory::use_gpu(0);
}

}  // namespace nearstep::bench
