// Seconds on the link between a node's host and its devices, where the cost model of near-storage
// updates does not apply: in mode base, and where GPUs share that link. Bytes are of one node and
// step. A rate of 0 means no limit.
#pragma once

#include "plan/problem.hpp"

namespace nearstep::plan {

// The update in mode base: all drives read and write at once, over the host link. The state is read
// and written, gradients are read again.
double base_update_seconds(const Site& site, double state, double gradients);

// Gradients to the drives in mode base. Backward hides them while it lasts.
double base_gradient_seconds(const Site& site, double gradients);

// Traffic of GPUs: `of_gpus` bytes of parameters in forward; in backward as many, as many gradients
// back, and `gradients` to the devices in the direction of the parameters.
double gpu_forward_seconds(const Site& site, double of_gpus);
double gpu_backward_seconds(const Site& site, double of_gpus, double gradients);

}  // namespace nearstep::plan
