// Writes .xclbin files for emulated cards from the tables that describe the kernels.
#pragma once

#include "fpga/kernel/arguments.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace nearstep::emulator {

// A kernel of a card and the number of its compute units.
struct KernelOnCard {
    fpga::KernelDescription kernel;
    int units = 1;
};

// One memory bank; kernel arguments refer to it by name.
struct BankOnCard {
    std::string name = fpga::kBank;
    std::uint64_t base = 0x4000000000;  // arbitrary: the real shell's address is unknown
    std::uint64_t bytes = 4ULL << 30U;  // as on a SmartSSD
};

struct CardDescription {
    std::vector<KernelOnCard> kernels;
    std::vector<BankOnCard> banks = {BankOnCard()};
};

// The XML description of kernels that XRT reads: names, arguments and their registers.
std::string make_metadata(const CardDescription& card);

// The complete file. Equal descriptions give equal bytes; the UUID is a digest of the content.
std::vector<std::byte> make_xclbin(const CardDescription& card);

}  // namespace nearstep::emulator
