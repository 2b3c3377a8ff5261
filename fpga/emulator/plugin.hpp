// Where kernel models come from.
#pragma once

#include "fpga/emulator/kernel_model.hpp"

#include <string>

namespace nearstep::emulator {

// From the library that NEARSTEP_KERNEL_MODELS names, else from libnearstep_kernel_models.so beside
// the driver. Null, with a line on stderr, if there is none: runs of the kernel end in error.
KernelModel find_model(const std::string& kernel);

}  // namespace nearstep::emulator
