// The device on which a rank's model computes: the CPU or one of the node's GPUs, and the format.
#pragma once

#include "base/dtype.hpp"
#include "config/run_settings.hpp"

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

// The format of activations and matrix products. On a GPU, "auto" is the parameters' format. On a
// CPU it is bf16 for bf16 parameters if the CPU has AVX512_BF16, else fp32: torch's fp16 products
// on a CPU are a hundred times slower. Throws ConfigError for an unknown or impossible choice.
Dtype compute_format(const config::ModelSettings& settings, const ComputeDevice& device = {});

// Operations per second of a large matrix product on the device, in the given format: the best of
// three, measured in about 10 ms. Ranks that share a device measure it at the same time.
double measure_product_rate(const ComputeDevice& device, Dtype compute);

// Bytes per second that copies in the device's memory read and write, both together; and those from
// pinned host memory to the GPU. The best of three.
double measure_memory_rate(const ComputeDevice& device);
double measure_link_rate(const ComputeDevice& device);

}  // namespace nearstep::model
