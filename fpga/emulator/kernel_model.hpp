// How the emulated card calls a kernel's C++ source: what a plug-in with kernel models exports.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nearstep::emulator {

// The registers of a compute unit as the host packed them, and its way to the card's memory.
struct KernelCall {
    const std::uint32_t* registers;  // word k is at byte offset 4 k of the unit's address space
    std::size_t words;
    void* context;
    // Memory at a device address; null unless all `bytes` lie in one buffer of a bank that the
    // unit is connected to. Hardware would go on with whatever lies there.
    void* (*translate)(void* context, std::uint64_t address, std::uint64_t bytes);
};

// A plug-in exports one such function per kernel, with C linkage and the kernel's name behind
// "nearstep_model_". 0: done; else the run ends in error.
using KernelModel = int (*)(const KernelCall& call);

}  // namespace nearstep::emulator
