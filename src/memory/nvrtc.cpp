// Finds NVRTC and compiles with it. Used by cuda_driver.cpp and gpu_launch.cpp.
#include "memory/nvrtc.hpp"

#include "base/error.hpp"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>

namespace nearstep::memory {

namespace fs = std::filesystem;

namespace {

using Program = struct _nvrtcProgram*;  // NOLINT: NVRTC's name

template <typename Function>
Function* function_of(void* library, const char* name) {
    return reinterpret_cast<Function*>(::dlsym(library, name));
}

bool is_nvrtc(std::string_view name) {
    return name.starts_with("libnvrtc") && name.find(".so") != std::string_view::npos &&
           name.find("builtins") == std::string_view::npos &&
           name.find(".alt.") == std::string_view::npos;
}

void add_in_folder(const fs::path& folder, std::vector<std::string>& paths) {
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
        if (is_nvrtc(entry->path().filename().string())) {
            paths.push_back(entry->path().string());
        }
    }
}

// Libraries of CUDA and PyTorch's in this process.
std::vector<std::string> loaded_libraries() {
    std::vector<std::string> paths;
    const auto add = [](dl_phdr_info* info, std::size_t, void* to) {
        const std::string_view path = info->dlpi_name;
        const std::string_view name = path.substr(path.rfind('/') + 1);
        for (const char* start : {"libnvrtc", "libcudart", "libtorch_cuda", "libc10_cuda",
                                  "libcublas", "libtorch_python"}) {
            if (name.starts_with(start)) {
                static_cast<std::vector<std::string>*>(to)->emplace_back(path);
            }
        }
        return 0;
    };
    ::dl_iterate_phdr(add, &paths);
    return paths;
}

// Returns the paths at which packages of the Python index, conda and CUDA's own installer have
// NVRTC.
std::vector<std::string> candidates(int cuda_major) {
    std::vector<std::string> paths;
    for (const std::string& loaded : loaded_libraries()) {
        const fs::path folder = fs::path(loaded).parent_path();
        if (is_nvrtc(fs::path(loaded).filename().string())) {
            paths.push_back(loaded);
        }
        for (const char* place : {".", "../../cuda_nvrtc/lib", "../../nvidia/cuda_nvrtc/lib",
                                  "../../nvidia/cu13/lib", "../../../.."}) {
            add_in_folder(folder / place, paths);
        }
    }
    for (int major = cuda_major; major >= 12; --major) {
        paths.push_back(text("libnvrtc.so.", major));
    }
    if (const char* home = std::getenv("CUDA_HOME")) {
        add_in_folder(fs::path(home) / "lib64", paths);
    }
    add_in_folder("/usr/local/cuda/lib64", paths);
    return paths;
}

std::unique_ptr<Nvrtc> look(int cuda_major) {
    std::unique_ptr<Nvrtc> best;
    for (const std::string& path : candidates(cuda_major)) {
        void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) {
            continue;
        }
        auto found = std::make_unique<Nvrtc>(library);
        if (found->major() < 12 || found->major() > cuda_major) {
            continue;
        }
        if (best == nullptr ||
            std::pair(found->major(), found->minor()) > std::pair(best->major(), best->minor())) {
            best = std::move(found);
        }
        if (best->major() == cuda_major) {
            break;
        }
    }
    return best;
}

}  // namespace

const Nvrtc* find_nvrtc(int cuda_major) {
    static std::mutex mutex;
    static std::map<int, std::unique_ptr<Nvrtc>> found;
    const std::scoped_lock lock(mutex);
    const auto [at, is_new] = found.try_emplace(cuda_major);
    if (is_new) {
        at->second = look(cuda_major);
    }
    return at->second.get();
}

Nvrtc::Nvrtc(void* library) : library_(library) {
    const auto version = function_of<int(int*, int*)>(library, "nvrtcVersion");
    if (version == nullptr || version(&major_, &minor_) != 0) {
        major_ = 0;
    }
}

std::vector<int> Nvrtc::computes() const {
    const auto count_of = function_of<int(int*)>(library_, "nvrtcGetNumSupportedArchs");
    const auto list = function_of<int(int*)>(library_, "nvrtcGetSupportedArchs");
    int count = 0;
    if (count_of == nullptr || list == nullptr || count_of(&count) != 0 || count <= 0) {
        return {};
    }
    std::vector<int> computes(static_cast<std::size_t>(count));
    if (list(computes.data()) != 0) {
        return {};
    }
    std::ranges::sort(computes);
    return computes;
}

namespace {

using Create = int(Program*, const char*, const char*, int, const char* const*, const char* const*);
using Compile = int(Program, int, const char* const*);
using Destroy = int(Program*);
using AddName = int(Program, const char*);
using GetName = int(Program, const char*, const char**);
using GetSize = int(Program, std::size_t*);
using GetText = int(Program, char*);

// Whether there is machine code for the GPU, and what the compiler gets to know of it.
struct Target {
    bool has_code = false;
    int compute = 0;
};

Target target_of(const std::vector<int>& computes, int compute) {
    Target target{.has_code = std::ranges::find(computes, compute) != computes.end(),
                  .compute = compute};
    if (!target.has_code) {
        for (const int one : computes) {
            target.compute = one <= compute ? one : target.compute;
        }
    }
    return target;
}

std::string output_of(void* library, Program program, const char* size_name, const char* name) {
    std::string bytes;
    std::size_t size = 0;
    auto* const size_of = function_of<GetSize>(library, size_name);
    auto* const text_of = function_of<GetText>(library, name);
    if (size_of != nullptr && text_of != nullptr && size_of(program, &size) == 0) {
        bytes.resize(size);
        if (text_of(program, bytes.data()) != 0) {
            bytes.clear();
        }
    }
    return bytes;
}

}  // namespace

GpuCode Nvrtc::compile(const GpuProgram& program) const {
    auto* const create = function_of<Create>(library_, "nvrtcCreateProgram");
    auto* const compile = function_of<Compile>(library_, "nvrtcCompileProgram");
    auto* const destroy = function_of<Destroy>(library_, "nvrtcDestroyProgram");
    auto* const add_name = function_of<AddName>(library_, "nvrtcAddNameExpression");
    auto* const get_name = function_of<GetName>(library_, "nvrtcGetLoweredName");
    expects(create != nullptr && compile != nullptr && destroy != nullptr && add_name != nullptr &&
                get_name != nullptr,
            "NVRTC is whole");
    const Target target = target_of(computes(), program.compute);
    const std::string architecture =
        text("-arch=", target.has_code ? "sm_" : "compute_", target.compute);
    // A product and a sum round one after the other, so that the bits are the host's.
    const std::vector<const char*> options = {architecture.c_str(), "-std=c++20", "--fmad=false",
                                              "-default-device"};
    std::vector<const char*> names;
    std::vector<const char*> texts;
    for (const auto& [name, header] : program.headers) {
        names.push_back(name.c_str());
        texts.push_back(header.c_str());
    }
    Program made = nullptr;
    int code = create(&made, program.source.c_str(), program.path.c_str(),
                      static_cast<int>(names.size()), texts.data(), names.data());
    GpuCode result;
    std::string log;
    if (code == 0) {
        const char* name = nullptr;
        code = add_name(made, program.kernel.c_str());
        code = code != 0 ? code : compile(made, static_cast<int>(options.size()), options.data());
        code = code != 0 ? code : get_name(made, program.kernel.c_str(), &name);
        if (code == 0) {
            result.name = name;
            result.code = target.has_code
                              ? output_of(library_, made, "nvrtcGetCUBINSize", "nvrtcGetCUBIN")
                              : output_of(library_, made, "nvrtcGetPTXSize", "nvrtcGetPTX");
        }
        log = output_of(library_, made, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog");
        destroy(&made);
    }
    if (code != 0 || result.code.empty()) {
        throw CudaError(text("NVRTC ", major_, ".", minor_, " cannot compile ", program.kernel,
                             " of ", program.path, " with ", architecture, " (code ", code,
                             "): ", log.c_str()));
    }
    return result;
}

}  // namespace nearstep::memory
