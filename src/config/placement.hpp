// How widely parameters, gradients and optimizer state are sharded.
#pragma once

#include "config/engine_settings.hpp"

#include <string>

namespace nearstep::config {

// One copy per rank, per node, or in all, from narrow to wide.
enum class Sharding { replicated, node, global };

const char* name_of(Sharding sharding);

struct Placement {
    Sharding parameters = Sharding::replicated;
    Sharding gradients = Sharding::node;
    Sharding optimizer = Sharding::global;
};

// The placement that the settings ask for. "auto" means: parameters replicated, state global.
// Gradients are replicated with a flat scatter, else sharded over the node; but at least as wide as
// parameters and at most as wide as state.
Placement placement_of(const EngineSettings& settings);

}  // namespace nearstep::config
