// Changes to the objects of an HDF5 file, as an input says. What the library itself refuses is
// left.
#pragma once

#include "fuzz.hpp"

#include <string>
#include <vector>

namespace nearstep::fuzz {

// Of each in turn: which of `names` (attributes begin with '@'), and what to do with it.
void edit_h5(Input& input, const std::string& path, const std::vector<std::string>& names);

}  // namespace nearstep::fuzz
