// HTML helpers that every study uses.
#pragma once

#include <string>
#include <string_view>

namespace nearstep::report {

// Replaces the five characters that HTML reserves.
std::string escaped(std::string_view text);

// Formats one number. `format` is as in Python's format(): "", ".3f", ".4g" or ".2e"; others count
// as ".4g".
std::string formatted(double value, std::string_view format);

}  // namespace nearstep::report
