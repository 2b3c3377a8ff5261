// Plans from sizes alone what a rank keeps on its GPU. Needs no GPU and no torch.
#pragma once

#include "config/run_settings.hpp"
#include "model/residence.hpp"

#include <cstddef>
#include <string>

namespace nearstep::model {

// The work of a rank's GPU in a step.
struct GpuWork {
    int rows = 1;              // the rank's rows in all micro-batches
    int micro_rows = 1;        // the most rows of a micro-batch
    bool is_streamed = false;  // stream blocks through few slots even if all would fit
    int joint_ranks = 1;       // ranks that copy each block together
    // Gradient buffers outside the network; 0: the network has one for its largest block.
    std::size_t gradient_bytes = 0;
};

// Bytes of GPU memory, except host_bytes and link_bytes. The workspace is estimated from the block
// functions' tensors; the other sizes are what is allocated.
struct GpuPlan {
    Residence residence;
    int blocks = 0;
    std::size_t budget_bytes = 0;
    std::size_t parameter_bytes = 0;  // resident parameters, or slots
    std::size_t input_bytes = 0;      // block inputs: all that wait, or those being moved
    std::size_t kept_bytes = 0;       // what backward needs of Residence::kept_blocks
    std::size_t gradient_bytes = 0;
    std::size_t workspace_bytes = 0;  // a block's computation and gradients of borrowed parameters
    std::size_t host_bytes = 0;       // pinned host memory of waiting inputs
    // Bytes that a step moves between host memory and the GPU, without gradients. With joint ranks
    // this is the first rank's count, whose parts are the largest.
    std::size_t link_bytes = 0;

    std::size_t total_bytes() const {
        return parameter_bytes + input_bytes + kept_bytes + gradient_bytes + workspace_bytes;
    }
};

// Returns the plan within `budget_bytes` that moves the fewest bytes. Parameters are all on the GPU
// or in as many slots as fit; block inputs are on the GPU or the host, unless model.activations
// says which. What is left then keeps what the backward of as many blocks as fit needs. Throws
// ConfigError with what to set if two slots do not fit, or "all" blocks cannot be kept.
GpuPlan plan_gpu(const config::ModelSettings& settings, const GpuWork& work,
                 std::size_t budget_bytes);

// Plans a network on the CPU, whose parameters and inputs stay where they are: how many blocks are
// kept within `budget_bytes` of memory.
Residence plan_cpu(const config::ModelSettings& settings, const GpuWork& work,
                   std::size_t budget_bytes);

// "GPU memory planned: 3.1 GB of 16 GB; parameters 1.3 GB (3 slots that 34 blocks stream through),
// ...".
std::string describe(const GpuPlan& plan);

}  // namespace nearstep::model
