// Loaded before a program: the NVRTC of CUDA 13 is not to be had, under whatever name it is asked
// for, so that an older one serves.
#include <dlfcn.h>

#include <cstring>

namespace {

using Open = void*(const char*, int) noexcept;
using Version = int(int*, int*);

Open* const real = reinterpret_cast<Open*>(dlsym(RTLD_NEXT, "dlopen"));

bool is_nvrtc_13(const char* path) {
    if (path == nullptr || std::strstr(path, "libnvrtc.so") == nullptr) {
        return false;
    }
    void* const library = real(path, RTLD_NOW | RTLD_LOCAL);
    int major = 0;
    int minor = 0;
    auto* const version =
        library == nullptr ? nullptr : reinterpret_cast<Version*>(dlsym(library, "nvrtcVersion"));
    return version != nullptr && version(&major, &minor) == 0 && major >= 13;
}

}  // namespace

// The call at the end is a jump, so that the real function searches the folders of the caller.
extern "C" void* dlopen(const char* path, int mode) noexcept {
    return is_nvrtc_13(path) ? nullptr : real(path, mode);
}
