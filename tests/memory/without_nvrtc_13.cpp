// Loaded before a program: the NVRTC of CUDA 13 is not to be had, so that an older one serves.
#include <dlfcn.h>

#include <cstring>

namespace {

using Open = void*(const char*, int) noexcept;

Open* const real = reinterpret_cast<Open*>(dlsym(RTLD_NEXT, "dlopen"));

}  // namespace

// The call at the end is a jump, so that the real function searches the folders of the caller.
extern "C" void* dlopen(const char* path, int mode) noexcept {
    if (path != nullptr && std::strstr(path, "libnvrtc.so.13") != nullptr) {
        return nullptr;
    }
    return real(path, mode);
}
