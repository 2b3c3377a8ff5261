// Checks what a manifest says against its own name and layout: anybody may have written it.
#pragma once

#include "store/manifest.hpp"
#include "store/names.hpp"

#include <string>

namespace nearstep::engine {

// What no run writes into a manifest of this name, as a phrase; empty: nothing. Lists the state
// files in a manifest of an older format, which does not.
std::string fault_of(store::Manifest& manifest, store::RankFileName name);

}  // namespace nearstep::engine
