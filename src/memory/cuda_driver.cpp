// Loads CUDA's driver and says why a GPU cannot be used. Used by gpu.cpp and gpu_launch.cpp.
#include "memory/cuda_driver.hpp"

#include "base/wording.hpp"
#include "memory/nvrtc.hpp"

#include <dlfcn.h>

namespace nearstep::memory {

namespace {

constexpr int kOldestCuda = 12000;  // driver 525

template <typename Function>
bool find(void* library, const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(::dlsym(library, name));
    return function != nullptr;
}

// Whether the library has all of them.
bool find_all(void* library, CudaDriver& driver) {
    return find(library, "cuInit", driver.init) &&
           find(library, "cuDriverGetVersion", driver.driver_version) &&
           find(library, "cuGetErrorString", driver.error_string) &&
           find(library, "cuDeviceGetCount", driver.device_count) &&
           find(library, "cuDeviceGet", driver.device) &&
           find(library, "cuDeviceGetName", driver.device_name) &&
           find(library, "cuDeviceGetAttribute", driver.device_attribute) &&
           find(library, "cuDeviceCanAccessPeer", driver.can_access_peer) &&
           find(library, "cuDeviceGetP2PAttribute", driver.p2p_attribute) &&
           find(library, "cuDevicePrimaryCtxRetain", driver.retain_primary_context) &&
           find(library, "cuCtxGetCurrent", driver.current_context) &&
           find(library, "cuCtxSetCurrent", driver.set_current_context) &&
           find(library, "cuCtxGetDevice", driver.device_of_context) &&
           find(library, "cuCtxGetStreamPriorityRange", driver.priority_range) &&
           find(library, "cuCtxSynchronize", driver.synchronize) &&
           find(library, "cuMemGetInfo_v2", driver.memory_info) &&
           find(library, "cuMemAlloc_v2", driver.allocate) &&
           find(library, "cuMemFree_v2", driver.free) &&
           find(library, "cuMemHostAlloc", driver.allocate_host) &&
           find(library, "cuMemFreeHost", driver.free_host) &&
           find(library, "cuMemHostRegister_v2", driver.pin) &&
           find(library, "cuMemHostUnregister", driver.unpin) &&
           find(library, "cuPointerGetAttribute", driver.pointer_attribute) &&
           find(library, "cuMemcpyHtoDAsync_v2", driver.copy_to_device) &&
           find(library, "cuMemcpyDtoHAsync_v2", driver.copy_to_host) &&
           find(library, "cuMemcpyDtoDAsync_v2", driver.copy_on_device) &&
           find(library, "cuMemsetD8Async", driver.fill_bytes) &&
           find(library, "cuStreamCreateWithPriority", driver.create_stream) &&
           find(library, "cuStreamDestroy_v2", driver.destroy_stream) &&
           find(library, "cuStreamSynchronize", driver.synchronize_stream) &&
           find(library, "cuStreamWaitEvent", driver.wait_in_stream) &&
           find(library, "cuEventCreate", driver.create_event) &&
           find(library, "cuEventDestroy_v2", driver.destroy_event) &&
           find(library, "cuEventRecord", driver.record_event) &&
           find(library, "cuEventQuery", driver.query_event) &&
           find(library, "cuEventSynchronize", driver.synchronize_event) &&
           find(library, "cuEventElapsedTime", driver.elapsed_time) &&
           find(library, "cuModuleLoadData", driver.load_module) &&
           find(library, "cuModuleGetFunction", driver.function_of_module) &&
           find(library, "cuLaunchKernel", driver.launch_kernel);
}

std::string words_of(const CudaDriver& driver, int code) {
    const char* words = nullptr;
    return driver.error_string(code, &words) == 0 && words != nullptr ? words
                                                                      : text("error ", code);
}

std::string version_text(int version) { return text(version / 1000, ".", version % 1000 / 10); }

CudaDriverState look() {
    static CudaDriver driver{};
    CudaDriverState state;
    void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        return state;
    }
    if (!find_all(library, driver)) {
        state.obstacle = "The GPU's driver is too old: install driver 525 or a later one.";
        return state;
    }
    const int code = driver.init(0);
    if (code != 0) {
        if (code != kCudaNoDevice) {
            state.obstacle =
                text("The GPU's driver reports \"", words_of(driver, code), "\": see nvidia-smi.");
        }
        return state;
    }
    static_cast<void>(driver.driver_version(&state.version));
    int gpus = 0;
    if (driver.device_count(&gpus) != 0 || gpus == 0) {
        return state;
    }
    if (state.version < kOldestCuda) {
        state.obstacle = text("The GPU's driver serves CUDA ", version_text(state.version),
                              ", and 12.0 is needed: install driver 525 or a later one.");
        return state;
    }
    if (!find_nvrtc(state.version / 1000)) {
        const int major = state.version / 1000;
        state.obstacle = text("There is no NVRTC for CUDA ", major,
                              ", which compiles the GPU's kernels: install nvidia-cuda-nvrtc",
                              major < 13 ? text("-cu", major) : "", ".");
        return state;
    }
    state.driver = &driver;
    state.gpus = gpus;
    return state;
}

}  // namespace

const CudaDriverState& cuda_driver_state() {
    static const CudaDriverState state = look();
    return state;
}

void check(int code, const Where& where) {
    if (code != 0) {
        const CudaDriver* driver = cuda_driver_state().driver;
        throw CudaError(text(
            "CUDA reports \"", driver == nullptr ? text("error ", code) : words_of(*driver, code),
            "\" (", where.file, ":", where.line, "): see the GPU's log", then_start_again(), "."));
    }
}

}  // namespace nearstep::memory
