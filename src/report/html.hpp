// The pieces of a page that no study owns.
#pragma once

#include <string>
#include <string_view>

namespace nearstep::report {

// With the five characters that HTML reserves replaced.
std::string escaped(std::string_view text);

// printf of one number; `format` is as in Python's format(): "", ".3f", ".4g" or ".2e". Others are
// taken as ".4g".
std::string formatted(double value, std::string_view format);

}  // namespace nearstep::report
