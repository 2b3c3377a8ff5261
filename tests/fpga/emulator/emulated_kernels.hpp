// The kernels that an emulated card can run: nearstep's, compiled from the FPGA's sources.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace nearstep::emulator {

// Memory at a device address; null unless all `bytes` lie in one buffer of a bank that the compute
// unit is connected to. Hardware would access whatever lies there.
using Translate = std::function<void*(std::uint64_t address, std::uint64_t bytes)>;

// Runs the kernel with the arguments in its registers, as the host packed them: word k is at byte
// offset 4 k of the unit's address space. Returns false, and runs nothing, if there is no such
// kernel, or if an argument lies outside the registers or points to memory that is out of reach.
bool run_kernel(const std::string& name, const std::vector<std::uint32_t>& registers,
                const Translate& translate);

}  // namespace nearstep::emulator
