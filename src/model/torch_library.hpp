// The tensor library that the program runs with.
#pragma once

#include <string>

namespace nearstep::model {

struct TorchLibrary {
    std::string version{};         // of the headers that we were built with: "2.13.0"
    std::string cpu_capability{};  // the vector instructions that it uses here: "AVX512"
    std::string cuda{};            // the CUDA version that it was built for; empty: CPU only
    bool has_nccl = false;
    int gpus = 0;  // number that it finds here
    int threads = 0;
};

TorchLibrary find_library();

// Threads of its arithmetic on the CPU.
int threads();

}  // namespace nearstep::model
