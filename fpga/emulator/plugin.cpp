#include "fpga/emulator/plugin.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace nearstep::emulator {

namespace {

// The folder of the library that contains this code.
std::string own_folder() {
    Dl_info info{};
    static const char marker = 0;
    if (::dladdr(&marker, &info) == 0 || info.dli_fname == nullptr) {
        return ".";
    }
    const std::string path = info.dli_fname;
    const std::size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : path.substr(0, slash);
}

void* open_models() {
    const char* wanted = std::getenv("NEARSTEP_KERNEL_MODELS");
    const std::string path =
        wanted == nullptr ? own_folder() + "/libnearstep_kernel_models.so" : wanted;
    void* opened = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (opened == nullptr) {
        std::fprintf(stderr, "emulated card: no kernel models: %s\n", ::dlerror());
    }
    return opened;
}

}  // namespace

KernelModel find_model(const std::string& kernel) {
    static void* models = open_models();
    void* found =
        models == nullptr ? nullptr : ::dlsym(models, ("nearstep_model_" + kernel).c_str());
    if (found == nullptr) {
        std::fprintf(stderr, "emulated card: no model of the kernel %s\n", kernel.c_str());
    }
    return reinterpret_cast<KernelModel>(found);
}

}  // namespace nearstep::emulator
