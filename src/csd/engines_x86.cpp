#include "base/instruction_set.hpp"
#include "csd/engine_table.hpp"

namespace nearstep::csd {

const std::vector<Engine>& engines() {
    static const std::vector<Engine> usable =
        variants_for(instruction_sets(), scalar_engine, avx2_engine, avx512_engine);
    return usable;
}

}  // namespace nearstep::csd
