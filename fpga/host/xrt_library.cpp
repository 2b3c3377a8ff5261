// Loads XRT's library and leads our calls of it there. Called by card_xrt.cpp and
// inventory_xrt.cpp.
//
// XRT's interface is C++, whose functions no code can call by pointers that it asks a library for.
// So each that we call is defined here, as a jump to where the library has it; the build lists them
// in xrt_calls.hpp.
#include "fpga/host/xrt_library.hpp"

#include "base/error.hpp"
#include "fpga/host/card.hpp"

#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <filesystem>

namespace {

constexpr std::array kNames{
#define CALL(index, symbol) #symbol,
#include "xrt_calls.hpp"
#undef CALL
};

}  // namespace

extern "C" {
[[gnu::used, gnu::visibility("hidden")]] std::array<void*, kNames.size()> nearstep_xrt_calls;
}

#define CALL(index, symbol)                                                           \
    asm(".pushsection .text\n.globl " #symbol "\n.hidden " #symbol "\n.type " #symbol \
        ", @function\n" #symbol ":\n    jmp *nearstep_xrt_calls + 8 * " #index        \
        "(%rip)\n.size " #symbol ", . - " #symbol "\n.popsection");
#include "xrt_calls.hpp"
#undef CALL

namespace nearstep::fpga {

namespace {

constexpr const char* kFile = "libxrt_coreutil.so.2";

void* open_library() {
    void* const library = ::dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
    const char* const root = std::getenv("XILINX_XRT");
    return library != nullptr || root == nullptr
               ? library
               : ::dlopen(text(root, "/lib/", kFile).c_str(), RTLD_NOW | RTLD_LOCAL);
}

// Returns the version of the library that has the function, from its file's name, such as
// libxrt_coreutil.so.2.13.0.
std::string version_of(const void* function) {
    Dl_info found{};
    ::dladdr(function, &found);
    std::error_code unknown;
    const std::string file = std::filesystem::canonical(found.dli_fname, unknown).filename();
    const std::string before = "libxrt_coreutil.so.";
    return file.starts_with(before) ? file.substr(before.size()) : "2";
}

XrtLibrary load() {
    void* const library = open_library();
    if (library == nullptr) {
        const char* const why = ::dlerror();
        return {.version = "",
                .obstacle = text("XRT cannot be loaded (", why == nullptr ? kFile : why, ")")};
    }
    for (std::size_t i = 0; i < kNames.size(); ++i) {
        nearstep_xrt_calls[i] = ::dlsym(library, kNames[i]);
        if (nearstep_xrt_calls[i] == nullptr) {
            return {.version = "", .obstacle = text("this XRT has no function ", kNames[i])};
        }
    }
    return {.version = version_of(nearstep_xrt_calls[0]), .obstacle = ""};
}

}  // namespace

const XrtLibrary& find_library() {
    static const XrtLibrary found = load();
    return found;
}

void require_cards() {
    const XrtLibrary& library = find_library();
    if (!library.obstacle.empty()) {
        throw ConfigError(
            text("csd.device = \"xrt\" wants XRT 2.13 or newer, and ", library.obstacle,
                 ": install it and source /opt/xilinx/xrt/setup.sh, or use csd.device "
                 "= \"emulated\"."));
    }
}

}  // namespace nearstep::fpga
