// Compares descriptions of models, the line that manifests and checkpoints have of each.
#pragma once

#include <string>

namespace nearstep::engine {

// "A, not B": what is different in two descriptions of a model, whose parts are separated by
// commas.
std::string difference_of(const std::string& model, const std::string& wanted);

// Whether a state of `model` is one of `wanted`. Earlier versions of the program did not name the
// moments.
bool is_of_model(const std::string& model, const std::string& wanted);

}  // namespace nearstep::engine
