// The plug-in of the emulated card: nearstep's kernels, compiled from the FPGA's sources.
#include "fpga/emulator/call_kernel.hpp"
#include "fpga/kernel/arguments.hpp"
#include "fpga/kernel/updater.hpp"

using nearstep::emulator::call_kernel;
using nearstep::emulator::KernelCall;
using nearstep::fpga::kKernels;

extern "C" {

__attribute__((visibility("default"))) int nearstep_model_nearstep_updater(const KernelCall& call) {
    return call_kernel(nearstep_updater, kKernels[0], call);
}

__attribute__((visibility("default"))) int nearstep_model_nearstep_digest(const KernelCall& call) {
    return call_kernel(nearstep_digest, kKernels[1], call);
}

}  // extern "C"
