// Starts kernels of the .cu files, whose text the program has. NVRTC compiles a kernel when it
// first starts on a GPU; the result is kept in the user's cache for later processes.
#pragma once

#include "memory/gpu.hpp"

#include <array>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace nearstep::memory {

struct GpuCode;
class Nvrtc;

// A thread block per block, in one dimension.
struct KernelLaunch {
    const char* file = nullptr;    // such as "codec/gpu_topk.cu"
    const char* kernel = nullptr;  // such as "codec::add<float>", within the namespace nearstep
    unsigned blocks = 0;
    unsigned threads = 0;
};

// Starts the kernel in stream order on the calling thread's GPU. `arguments` are pointers to values
// of the kernel's parameters' types. Throws CudaError.
void launch_kernel(const KernelLaunch& launch, const Stream& stream, std::span<void*> arguments);

template <typename... Arguments>
void start_kernel(const KernelLaunch& launch, const Stream& stream, Arguments... arguments) {
    std::array<void*, sizeof...(arguments)> pointers = {static_cast<void*>(&arguments)...};
    launch_kernel(launch, stream, pointers);
}

// A file of the program's text: a .cu file, or a header that one includes, under its path in src/.
struct GpuFile {
    const char* path;
    const char* text;
};
// The build makes this from src/*/*.cu and what they include.
std::span<const GpuFile> gpu_files();

// A kernel's code for a compute capability such as 90, from the user's cache or by NVRTC. Throws
// CudaError.
GpuCode gpu_code(const Nvrtc& nvrtc, const KernelLaunch& launch, int compute);

}  // namespace nearstep::memory
