// Writes the settings with which a client trains a plan's choice.
#pragma once

#include "plan/choice.hpp"

#include <string>
#include <vector>

namespace nearstep::plan {

// Arguments of --set with which `nearstep train` trains the choice. A config that has them too is
// the same plan.
std::vector<std::string> settings_of(const Choice& choice, const Problem& problem);

// "nearstep.AdamW(...)", with which a program of PyTorch's trains the choice.
std::string python_of(const Choice& choice, const Problem& problem);

// The settings of the client that trains the choice; empty if none does.
std::string describe_settings(const Choice& choice, const Problem& problem);

}  // namespace nearstep::plan
