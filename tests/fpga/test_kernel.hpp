// A kernel for tests of the emulated card: adds two vectors of whole words.
#pragma once

#include "fpga/kernel/arguments.hpp"

#include <cstdint>

namespace nearstep::emulator {

// sum[i] = one[i] + other[i] for `words` words of 16 integers.
void add_words(const fpga::Word* one, const fpga::Word* other, fpga::Word* sum,
               std::uint32_t words);

constexpr fpga::Argument kAddArguments[] = {
    fpga::reads("one", "gmem0"),
    fpga::reads("other", "gmem1"),
    fpga::writes("sum", "gmem0"),
    fpga::scalar("words", fpga::ArgumentKind::u32),
};
constexpr fpga::KernelDescription kAdd = {"add_words", kAddArguments, 4};

}  // namespace nearstep::emulator
