// Loads kernel models.
#pragma once

#include "fpga/emulator/kernel_model.hpp"

#include <string>

namespace nearstep::emulator {

// Looks in the library named by NEARSTEP_KERNEL_MODELS, else in libnearstep_kernel_models.so beside
// the driver. If there is no model, prints a line to stderr and returns null; the kernel's runs
// then end in error.
KernelModel find_model(const std::string& kernel);

}  // namespace nearstep::emulator
