// Changes objects of an HDF5 file as an input says. Changes that the library refuses are skipped.
#pragma once

#include "fuzz.hpp"

#include <string>
#include <vector>

namespace nearstep::fuzz {

// Each edit chooses one of `names` (attributes begin with '@') and what to do with it.
void edit_h5(Input& input, const std::string& path, const std::vector<std::string>& names);

}  // namespace nearstep::fuzz
