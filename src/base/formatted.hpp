// printf to a string.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>

namespace nearstep {

// formatted("%.3g s", 0.1234) is "0.123 s". `format` is a literal that fits the values.
template <typename... Values>
std::string formatted(const char* format, Values... values) {
    const int length = std::snprintf(nullptr, 0, format, values...);
    std::string out(static_cast<std::size_t>(length) + 1, '\0');
    std::snprintf(out.data(), out.size(), format, values...);
    out.pop_back();
    return out;
}

inline std::string three_digits(double value) { return formatted("%.3g", value); }

}  // namespace nearstep
