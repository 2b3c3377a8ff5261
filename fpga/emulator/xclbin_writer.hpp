// Writes .xclbin files for emulated cards, from the tables that describe the kernels.
#pragma once

#include "fpga/kernel/arguments.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace nearstep::emulator {

// A kernel of a card and how many compute units it has.
struct KernelOnCard {
    fpga::KernelDescription kernel;
    int units = 1;
};

// One memory; the arguments of kernels name it.
struct BankOnCard {
    std::string name = fpga::kBank;
    std::uint64_t base = 0x4000000000;  // arbitrary: that of the real shell is not known
    std::uint64_t bytes = 4ULL << 30U;  // of a SmartSSD
};

struct CardDescription {
    std::vector<KernelOnCard> kernels;
    std::vector<BankOnCard> banks = {BankOnCard()};
};

// The description of kernels that XRT reads: names, arguments and their registers.
std::string make_metadata(const CardDescription& card);

// The whole file. The same description gives the same bytes; its UUID is a digest of its content.
std::vector<std::byte> make_xclbin(const CardDescription& card);

}  // namespace nearstep::emulator
