#include "base/instruction_set.hpp"

namespace nearstep {

const char* name_of(InstructionSet set) {
    switch (set) {
        case InstructionSet::scalar:
            return "scalar";
        case InstructionSet::avx2:
            return "avx2";
        case InstructionSet::avx512:
            return "avx512";
    }
    return "unknown";
}

}  // namespace nearstep
