#include "csd/engine_table.hpp"

namespace nearstep::csd {

std::vector<Engine> engines() { return {scalar_engine}; }

const Engine& best_engine() { return scalar_engine; }

}  // namespace nearstep::csd
