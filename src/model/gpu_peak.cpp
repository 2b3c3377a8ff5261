// Counts a model's operations and knows the peak rates of GPUs. Used by train/loop.cpp,
// train/gpu_share.cpp and report/summary.cpp.
#include "model/gpu_peak.hpp"

#include <array>

namespace nearstep::model {

namespace {

struct Peak {
    const char* name;  // part of the GPU's name; the first row that matches counts
    double tera;
};

// Peak rates from NVIDIA's data sheets, half of the figures that include sparsity.
constexpr std::array<Peak, 13> kPeaks{{{"B200", 2250},
                                       {"H200 NVL", 835.5},
                                       {"H200", 989.5},
                                       {"H100 NVL", 835.5},
                                       {"H100 PCIe", 756.5},
                                       {"H100", 989.5},
                                       {"A100", 312},
                                       {"L40S", 362},
                                       {"L40", 181},
                                       {"A40", 149.7},
                                       {"A30", 165},
                                       {"A10", 125},
                                       {"L4", 121}}};

// Matches whole words: "A10" does not match "A100" or "A10G".
bool has_words(const std::string& name, const std::string& words) {
    const std::size_t at = (" " + name + " ").find(" " + words);
    if (at == std::string::npos) {
        return false;
    }
    const std::size_t end = at + words.size();
    return end >= name.size() || name[end] == ' ' || name[end] == '-';
}

}  // namespace

double operations_per_token(const config::ModelSettings& settings, std::size_t parameters) {
    return 6.0 * static_cast<double>(parameters - settings.looked_up()) +
           12.0 * settings.layers * settings.width * settings.context;
}

std::optional<double> peak_operations(const std::string& gpu, Dtype compute) {
    if (compute == Dtype::fp32) {
        return std::nullopt;
    }
    for (const Peak& peak : kPeaks) {
        if (has_words(gpu, peak.name)) {
            return peak.tera * 1e12;
        }
    }
    return std::nullopt;
}

}  // namespace nearstep::model
