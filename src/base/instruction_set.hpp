// Lists the vector instructions of this CPU, to choose among functions compiled for several sets.
#pragma once

#include "base/words.hpp"

#include <vector>

namespace nearstep {

// avx2 stands for AVX2, BMI2 and POPCNT together, avx512 for these and F, BW, DQ and VL.
enum class InstructionSet { scalar, avx2, avx512 };

// True if the build has sources with x86 vector instructions.
#ifdef __x86_64__
constexpr bool kHasX86Sets = true;
#else
constexpr bool kHasX86Sets = false;
#endif

template <>
inline constexpr std::array kWords<InstructionSet> = {"scalar", "avx2", "avx512"};

// The sets that this CPU can run, slowest first; scalar is always among them.
std::vector<InstructionSet> instruction_sets();

// Chooses the variants for `sets`, in the order of `sets`.
template <typename Variant>
std::vector<Variant> variants_for(const std::vector<InstructionSet>& sets, const Variant& scalar,
                                  const Variant& avx2, const Variant& avx512) {
    std::vector<Variant> variants;
    variants.reserve(sets.size());
    for (const InstructionSet set : sets) {
        variants.push_back(set == InstructionSet::avx512 ? avx512
                           : set == InstructionSet::avx2 ? avx2
                                                         : scalar);
    }
    return variants;
}

}  // namespace nearstep
