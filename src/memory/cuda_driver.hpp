// The functions of CUDA's driver that nearstep calls. libcuda.so.1 comes with the GPU's driver and
// is loaded when it is first needed, so that one build serves machines with and without a GPU.
#pragma once

#include "base/error.hpp"

#include <cstddef>
#include <string>

// CUDA's own types, declared here since its headers need not be there.
struct CUctx_st;
struct CUevent_st;
struct CUfunc_st;
struct CUmod_st;
struct CUstream_st;

namespace nearstep::memory {

using CudaAddress = unsigned long long;

// Members have the functions' names without "cu". Each returns CUDA's code; 0 is success.
struct CudaDriver {
    int (*init)(unsigned flags);
    int (*driver_version)(int* version);  // 12040: CUDA 12.4
    int (*error_string)(int code, const char** words);
    int (*device_count)(int* count);
    int (*device)(int* device, int number);
    int (*device_name)(char* name, int bytes, int device);
    int (*device_attribute)(int* value, int attribute, int device);
    int (*can_access_peer)(int* can, int device, int peer);
    int (*p2p_attribute)(int* value, int attribute, int device, int peer);
    int (*retain_primary_context)(CUctx_st** context, int device);
    int (*current_context)(CUctx_st** context);
    int (*set_current_context)(CUctx_st* context);
    int (*device_of_context)(int* device);
    int (*priority_range)(int* least, int* greatest);
    int (*synchronize)();
    int (*memory_info)(std::size_t* free, std::size_t* total);
    int (*allocate)(CudaAddress* memory, std::size_t bytes);
    int (*free)(CudaAddress memory);
    int (*allocate_host)(void** memory, std::size_t bytes, unsigned flags);
    int (*free_host)(void* memory);
    int (*pin)(void* memory, std::size_t bytes, unsigned flags);
    int (*unpin)(void* memory);
    int (*pointer_attribute)(void* value, int attribute, CudaAddress pointer);
    int (*copy_to_device)(CudaAddress to, const void* from, std::size_t bytes, CUstream_st* stream);
    int (*copy_to_host)(void* to, CudaAddress from, std::size_t bytes, CUstream_st* stream);
    int (*copy_on_device)(CudaAddress to, CudaAddress from, std::size_t bytes, CUstream_st* stream);
    int (*fill_bytes)(CudaAddress to, unsigned char value, std::size_t bytes, CUstream_st* stream);
    int (*create_stream)(CUstream_st** stream, unsigned flags, int priority);
    int (*destroy_stream)(CUstream_st* stream);
    int (*synchronize_stream)(CUstream_st* stream);
    int (*wait_in_stream)(CUstream_st* stream, CUevent_st* event, unsigned flags);
    int (*create_event)(CUevent_st** event, unsigned flags);
    int (*destroy_event)(CUevent_st* event);
    int (*record_event)(CUevent_st* event, CUstream_st* stream);
    int (*query_event)(CUevent_st* event);
    int (*synchronize_event)(CUevent_st* event);
    int (*elapsed_time)(float* milliseconds, CUevent_st* from, CUevent_st* to);
    int (*load_module)(CUmod_st** module, const void* image);
    int (*function_of_module)(CUfunc_st** function, CUmod_st* module, const char* name);
    int (*launch_kernel)(CUfunc_st* kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                         unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                         CUstream_st* stream, void** arguments, void** more);
};

// Codes and attributes of CUDA that we compare with or ask for. Their values never change.
constexpr int kCudaNoMemory = 2;
constexpr int kCudaNoDevice = 100;
constexpr int kCudaNotReady = 600;
constexpr int kMultiprocessors = 16;
constexpr int kPciBus = 33;
constexpr int kPciDevice = 34;
constexpr int kPciDomain = 50;
constexpr int kComputeMajor = 75;
constexpr int kComputeMinor = 76;

// The driver, or the reason why this process cannot use it.
struct CudaDriverState {
    const CudaDriver* driver = nullptr;  // null: no GPU can be used
    int version = 0;                     // of CUDA, as the driver has it
    int gpus = 0;
    // Why a GPU that could be there is not used, and what to do; empty where there is none.
    std::string obstacle = {};
};

// Looks once per process. Any thread may call.
const CudaDriverState& cuda_driver_state();

// The driver, with a context in this thread: that of use_gpu(), or GPU 0's. Throws CudaError if no
// GPU can be used.
const CudaDriver& cuda_driver();

// Throws CudaError with CUDA's own text unless `code` is success.
void check(int code, const Where& where = Where());

}  // namespace nearstep::memory
