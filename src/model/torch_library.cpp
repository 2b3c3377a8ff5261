// Describes the torch library of this program. Used by the trainer and the doctor.
#include "model/torch_library.hpp"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/cuda.h>
#include <torch/version.h>

namespace nearstep::model {

namespace {

// The value of "NAME=value," in the build settings; empty if missing.
std::string setting_of(const std::string& config, const std::string& name) {
    const std::string start = " " + name + "=";
    const std::size_t at = config.find(start);
    if (at == std::string::npos) {
        return {};
    }
    const std::size_t begin = at + start.size();
    return config.substr(begin, config.find_first_of(",\n", begin) - begin);
}

bool is_on(const std::string& value) { return value == "1" || value == "ON"; }

}  // namespace

TorchLibrary find_library() {
    const std::string config = at::show_config();
    TorchLibrary library{.version = TORCH_VERSION,
                         .cpu_capability = at::get_cpu_capability(),
                         .has_nccl = is_on(setting_of(config, "USE_NCCL")),
                         .gpus = static_cast<int>(torch::cuda::device_count()),
                         .threads = model::threads()};
    if (is_on(setting_of(config, "USE_CUDA"))) {
        const std::string version = setting_of(config, "CUDA_VERSION");
        library.cuda = version.empty() ? "some version" : version;
    }
    return library;
}

int threads() { return at::get_num_threads(); }

}  // namespace nearstep::model
