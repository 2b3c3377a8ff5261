// NVRTC, CUDA's compiler as a library. PyTorch for CUDA brings one along, and that one is used.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace nearstep::memory {

// A program that NVRTC compiles: one kernel of a file, and the headers that the file may include,
// as pairs of path and text.
struct GpuProgram {
    std::string path;
    std::string source;
    std::vector<std::pair<std::string, std::string>> headers;
    std::string kernel;  // a function of the file, such as "csd::update<arith::StateFormat::q8>"
    int compute = 0;     // the GPU's compute capability, such as 90
};

// Code for a GPU, and the kernel's name in it.
struct GpuCode {
    std::string name;
    std::string code;
};

class Nvrtc {
public:
    explicit Nvrtc(void* library);

    int major() const { return major_; }
    int minor() const { return minor_; }

    // Machine code for the GPU, or PTX for the driver where the GPU is newer than this NVRTC.
    // Throws CudaError with the compiler's log.
    GpuCode compile(const GpuProgram& program) const;

    // Compute capabilities with machine code, ascending.
    std::vector<int> computes() const;

private:
    void* library_;
    int major_ = 0;
    int minor_ = 0;
};

// The newest NVRTC for this major version of CUDA or an older one: beside the CUDA libraries that
// the process has loaded, where the loader looks, or in CUDA's usual folder. Null: there is none.
// Looks once per process and version. Any thread may call.
const Nvrtc* find_nvrtc(int cuda_major);

}  // namespace nearstep::memory
