// The tensor library that the program runs with.
#pragma once

#include <string>

namespace nearstep::model {

struct Library {
    std::string version{};         // of the headers it was built with: "2.13.0"
    std::string cpu_capability{};  // the instructions it chose here: "AVX512"
    std::string cuda{};            // the CUDA it was built for; empty: for the CPU alone
    bool has_nccl = false;
    int gpus = 0;  // that it finds here
    int threads = 0;
};

Library find_library();

}  // namespace nearstep::model
