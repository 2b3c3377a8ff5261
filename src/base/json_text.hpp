// A check of JSON text before it is parsed.
#pragma once

#include <string_view>

namespace nearstep {

// Whether arrays and objects are nested deeper than any file that nearstep reads. The JSON library
// parses them, but its recursive copies and prints would exhaust the stack.
bool is_nested_too_deeply(std::string_view json);

}  // namespace nearstep
