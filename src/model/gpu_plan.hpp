// What a rank keeps on its GPU, planned from sizes alone. Needs no GPU and no torch.
#pragma once

#include "config/run.hpp"
#include "model/residence.hpp"

#include <cstddef>
#include <string>

namespace nearstep::model {

// What is asked of a rank's GPU in a step.
struct GpuWork {
    int rows = 1;              // of the rank, in all micro-batches
    int micro_rows = 1;        // most of a micro-batch
    bool is_streamed = false;  // blocks stream through few slots even if all would fit
    int joint_ranks = 1;       // that bring each block together
    // Buffers of gradients beside the network; 0: the network has one for its largest block.
    std::size_t gradient_bytes = 0;
};

// Bytes of the GPU's memory, but for link_bytes. The workspace is an estimate from the block
// functions' tensors, everything else is what is allocated.
struct GpuPlan {
    Residence residence;
    int blocks = 0;
    std::size_t budget_bytes = 0;
    std::size_t parameter_bytes = 0;  // resident, or slots
    std::size_t input_bytes = 0;      // of blocks: all that wait, or those on their way
    std::size_t gradient_bytes = 0;
    std::size_t workspace_bytes = 0;  // of a block's computation, and gradients of borrowed ones
    std::size_t host_bytes = 0;       // pinned, of inputs that wait there
    // Between host memory and the GPU, a step, but gradients; of those that bring blocks together
    // the first, whose parts are the largest.
    std::size_t link_bytes = 0;

    std::size_t total_bytes() const {
        return parameter_bytes + input_bytes + gradient_bytes + workspace_bytes;
    }
};

// Of all plans that stay within `budget_bytes` the one that moves the fewest bytes: all parameters
// on the GPU or as many slots as fit, inputs of blocks on the GPU or on the host (unless
// model.activations says which). Throws ConfigError with what to set if two slots do not fit.
GpuPlan plan_gpu(const config::ModelSettings& settings, const GpuWork& work,
                 std::size_t budget_bytes);

// "GPU memory planned: 3.1 of 16 GB: parameters 1.29 GB (3 slots, streamed), ...".
std::string describe(const GpuPlan& plan);

}  // namespace nearstep::model
