// Keys of earlier versions.
#pragma once

#include <string_view>

namespace nearstep::config {

// What to write instead, as a request; null if no version had such a key.
const char* instead_of(std::string_view key);

}  // namespace nearstep::config
