#include "csd/engine_table.hpp"

namespace nearstep::csd {

const std::vector<Engine>& engines() {
    static const std::vector<Engine> usable = {scalar_engine};
    return usable;
}

}  // namespace nearstep::csd
