// Tells text that is UTF-8, which TOML and JSON want, from bytes that are not.
#pragma once

#include <string>
#include <string_view>

namespace nearstep {

bool is_utf8(std::string_view bytes);

// The text with a question mark in place of each byte that is not UTF-8. For names in results.
std::string as_utf8(std::string_view bytes);

}  // namespace nearstep
