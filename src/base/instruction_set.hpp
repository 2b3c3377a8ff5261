// Which vector instructions this CPU has: the choice among sources compiled for several of them.
#pragma once

#include <vector>

namespace nearstep {

// avx512 stands for F, BW, DQ and VL together.
enum class InstructionSet { scalar, avx2, avx512 };

// "scalar", "avx2", "avx512".
const char* name_of(InstructionSet set);

// Those that this CPU can run, the slowest first; scalar is always one.
std::vector<InstructionSet> instruction_sets();

}  // namespace nearstep
