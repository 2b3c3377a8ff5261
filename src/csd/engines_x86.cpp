#include "base/instruction_set.hpp"
#include "csd/engine_table.hpp"

namespace nearstep::csd {

namespace {

const Engine& engine_of(InstructionSet set) {
    switch (set) {
        case InstructionSet::avx512:
            return avx512_engine;
        case InstructionSet::avx2:
            return avx2_engine;
        case InstructionSet::scalar:
            break;
    }
    return scalar_engine;
}

}  // namespace

std::vector<Engine> engines() {
    std::vector<Engine> usable;
    for (const InstructionSet set : instruction_sets()) {
        usable.push_back(engine_of(set));
    }
    return usable;
}

const Engine& best_engine() { return engine_of(instruction_sets().back()); }

}  // namespace nearstep::csd
