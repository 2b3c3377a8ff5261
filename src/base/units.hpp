// Byte units, and how sizes and counts are printed.
#pragma once

#include <cstddef>
#include <string>

namespace nearstep {

// Binary units keep their standard spelling.
// NOLINTBEGIN(readability-identifier-naming)
constexpr std::size_t KiB = std::size_t{1} << 10;
constexpr std::size_t MiB = std::size_t{1} << 20;
constexpr std::size_t GiB = std::size_t{1} << 30;
// NOLINTEND(readability-identifier-naming)

// The smallest multiple of `unit` that is at least `size`; `unit` > 0.
constexpr std::size_t round_up(std::size_t size, std::size_t unit) {
    return (size + unit - 1) / unit * unit;
}

// "1.6 GB": decimal units, at most three significant digits.
std::string human_bytes(double bytes);

// "1 rank", "2 ranks".
std::string counted(int count, const std::string& noun);

}  // namespace nearstep
