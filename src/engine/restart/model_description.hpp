// Compares the description of a state's or checkpoint's model with the run's. Commas separate the
// parts of a description.
#pragma once

#include <string>

namespace nearstep::engine {

// Returns the parts that differ, as "A, not B".
std::string difference_of(const std::string& model, const std::string& wanted);

// Whether a state of `model` is one of `wanted`. Earlier versions of the program did not name the
// moments.
bool is_of_model(const std::string& model, const std::string& wanted);

}  // namespace nearstep::engine
