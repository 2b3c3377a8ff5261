// Where a rank's model computes: the CPU or one of the node's GPUs.
#pragma once

#include <optional>
#include <string>

namespace nearstep::model {

struct ComputeDevice {
    std::optional<int> gpu;  // index among those that the process sees; none: the CPU

    bool is_gpu() const { return gpu.has_value(); }
};

// `wanted`: model.device. "auto" takes a GPU where PyTorch finds one. Rank `local_rank` of a node
// gets GPU local_rank modulo their number. Throws ConfigError if "cuda" is wanted and there is
// none.
ComputeDevice choose_device(const std::string& wanted, int local_rank);

// Makes torch give the same bits for the same arguments, by its algorithms and by its first calls
// (first_calls.hpp). Of the process; to be called before torch computes with several threads.
void repeat_bit_for_bit(const ComputeDevice& device);

}  // namespace nearstep::model
