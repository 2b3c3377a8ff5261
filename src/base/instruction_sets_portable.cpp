#include "base/instruction_set.hpp"

namespace nearstep {

std::vector<InstructionSet> instruction_sets() { return {InstructionSet::scalar}; }

}  // namespace nearstep
