// The interface between the emulated card and a plug-in with kernel models.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nearstep::emulator {

// A compute unit's registers as the host packed them, and its access to the card's memory.
struct KernelCall {
    const std::uint32_t* registers;  // word k is at byte offset 4 k of the unit's address space
    std::size_t words;
    void* context;
    // Memory at a device address; null unless all `bytes` lie in one buffer of a bank that the unit
    // is connected to. Hardware would access whatever lies there.
    void* (*translate)(void* context, std::uint64_t address, std::uint64_t bytes);
};

// A plug-in exports one such function per kernel, with C linkage. Its name is "nearstep_model_" and
// the kernel's name. Returns 0 on success; otherwise the run ends in error.
using KernelModel = int (*)(const KernelCall& call);

}  // namespace nearstep::emulator
