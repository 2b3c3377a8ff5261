// Over which ranks the copies of parameters, gradients and optimizer state are spread.
#pragma once

#include "config/engine_settings.hpp"

#include <string>

namespace nearstep::config {

// One copy for each rank, for each node, or one in all; from narrow to wide.
enum class Spread { replicated, node, global };

const char* name_of(Spread spread);

struct Placement {
    Spread parameters = Spread::replicated;
    Spread gradients = Spread::node;
    Spread optimizer = Spread::global;
};

// What the settings ask for. "auto" is: parameters replicated; state global; gradients replicated
// with a flat scatter, else over the node, or as wide as parameters and no wider than state have
// them.
Placement placement_of(const EngineSettings& settings);

}  // namespace nearstep::config
