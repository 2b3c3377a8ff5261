// Compiles, keeps and starts kernels. Used by gpu.cpp, codec, csd and model.
#include "memory/gpu_launch.hpp"

#include "base/descriptor.hpp"
#include "base/digest.hpp"
#include "base/plain_file.hpp"
#include "base/units.hpp"
#include "memory/cuda_driver.hpp"
#include "memory/nvrtc.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace nearstep::memory {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kMostCode = 64 * MiB;

std::span<const std::byte> bytes_of(const std::string& text) {
    return std::as_bytes(std::span(text));
}

// Empty: nothing is kept.
fs::path cache_folder() {
    const char* cache = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    fs::path folder;
    if (cache != nullptr && fs::path(cache).is_absolute()) {
        folder = cache;
    } else if (home != nullptr && fs::path(home).is_absolute()) {
        folder = fs::path(home) / ".cache";
    }
    return folder.empty() ? folder : folder / "nearstep" / "gpu";
}

std::string sealed(const std::string& bytes) { return to_hex(xxh3(bytes_of(bytes))) + bytes; }

// A file holds a digest, the kernel's name, a line's end and the code. Another one's or a damaged
// file is not used.
std::optional<GpuCode> read_code(const fs::path& path) {
    const std::string whole =
        is_own_plain(path.string()) ? start_of_plain(path.string(), kMostCode) : std::string();
    const std::size_t begin = to_hex(0).size();
    const std::size_t end = whole.find('\n');
    if (whole.size() <= begin || end == std::string::npos || end <= begin ||
        whole != sealed(whole.substr(begin))) {
        return std::nullopt;
    }
    return GpuCode{.name = whole.substr(begin, end - begin), .code = whole.substr(end + 1)};
}

// The next process compiles again if this fails.
void keep_code(const fs::path& path, const GpuCode& code) {
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    const std::string partial = text(path.string(), ".", ::getpid());
    const bool is_whole = [&] {
        const Descriptor file = make_plain(partial, S_IRUSR | S_IWUSR);
        return file && write_all(file, bytes_of(sealed(code.name + "\n" + code.code))) == 0;
    }();
    if (!is_whole || std::rename(partial.c_str(), path.c_str()) != 0) {
        fs::remove(partial, error);
    }
}

GpuProgram program_of(const KernelLaunch& launch, int compute) {
    const std::string file = launch.file;
    GpuProgram program{
        .path = file, .source = {}, .headers = {}, .kernel = launch.kernel, .compute = compute};
    for (const GpuFile& one : gpu_files()) {
        if (file == one.path) {
            program.source =
                text(one.text, "\nusing namespace nearstep;\n");  // for the kernel's name
        } else if (!std::string(one.path).ends_with(".cu")) {
            program.headers.emplace_back(one.path, one.text);
        }
    }
    expects(!program.source.empty(), "the build has embedded the file");
    return program;
}

std::string digest_of(const GpuProgram& program, const Nvrtc& nvrtc) {
    std::string all = text("nearstep ", nvrtc.major(), ".", nvrtc.minor(), " ", program.compute,
                           "\n", program.path, " ", program.kernel, "\n", program.source);
    for (const auto& [name, header] : program.headers) {
        all.append(name).append("\n").append(header);
    }
    return to_hex(xxh3(bytes_of(all)));
}

CUfunc_st* load(const CudaDriver& driver, const KernelLaunch& launch) {
    int device = 0;
    int major = 0;
    int minor = 0;
    check(driver.device_of_context(&device));
    check(driver.device_attribute(&major, kComputeMajor, device));
    check(driver.device_attribute(&minor, kComputeMinor, device));
    const Nvrtc* const nvrtc = find_nvrtc(cuda_driver_state().version / 1000);
    expects(nvrtc != nullptr, "a GPU counts only where NVRTC is");
    const GpuCode code = gpu_code(*nvrtc, launch, 10 * major + minor);
    CUmod_st* module = nullptr;
    CUfunc_st* kernel = nullptr;
    check(driver.load_module(&module, code.code.c_str()));
    check(driver.function_of_module(&kernel, module, code.name.c_str()));
    return kernel;
}

// The kernel in the thread's context. It stays loaded until the process ends.
CUfunc_st* kernel_of(const CudaDriver& driver, const KernelLaunch& launch) {
    static std::mutex mutex;
    // Names are literals, so their addresses tell them apart, or the same kernel is loaded twice.
    static std::map<std::pair<CUctx_st*, const char*>, CUfunc_st*> kernels;
    CUctx_st* context = nullptr;
    check(driver.current_context(&context));
    const std::scoped_lock lock(mutex);
    CUfunc_st*& kernel = kernels[{context, launch.kernel}];
    if (kernel == nullptr) {
        kernel = load(driver, launch);
    }
    return kernel;
}

}  // namespace

GpuCode gpu_code(const Nvrtc& nvrtc, const KernelLaunch& launch, int compute) {
    const GpuProgram program = program_of(launch, compute);
    const fs::path folder = cache_folder();
    const fs::path path = folder / (digest_of(program, nvrtc) + ".bin");
    std::optional<GpuCode> kept = folder.empty() ? std::nullopt : read_code(path);
    if (kept) {
        return std::move(*kept);
    }
    GpuCode code = nvrtc.compile(program);
    if (!folder.empty()) {
        keep_code(path, code);
    }
    return code;
}

void launch_kernel(const KernelLaunch& launch, const Stream& stream, std::span<void*> arguments) {
    if (launch.blocks > 0) {
        const CudaDriver& driver = cuda_driver();
        check(driver.launch_kernel(kernel_of(driver, launch), launch.blocks, 1, 1, launch.threads,
                                   1, 1, 0, stream.handle(), arguments.data(), nullptr));
    }
}

}  // namespace nearstep::memory
