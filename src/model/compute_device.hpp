// The device on which a rank's model computes: the CPU or one of the node's GPUs.
#pragma once

#include "config/enumerations.hpp"

#include <optional>

namespace nearstep::model {

struct ComputeDevice {
    std::optional<int> gpu;  // index among the GPUs that the process sees; none: the CPU

    bool is_gpu() const { return gpu.has_value(); }
};

// `wanted`: model.device. Automatic uses a GPU if PyTorch finds one. Rank `local_rank` of a node
// gets GPU local_rank modulo the number of GPUs. Throws ConfigError for cuda without a GPU.
ComputeDevice choose_device(config::Processor wanted, int local_rank);

// Makes torch give the same bits for the same arguments: chooses deterministic algorithms and makes
// first calls on one thread. Process-wide; call it before torch computes with several threads.
void repeat_bit_for_bit(const ComputeDevice& device);

}  // namespace nearstep::model
