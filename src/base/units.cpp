// Writes sizes and counts for people. Used by all modules that write messages.
#include "base/units.hpp"

#include "base/formatted.hpp"

#include <array>

namespace nearstep {

std::string human_bytes(double bytes) {
    constexpr std::array<const char*, 6> kUnits = {"B", "kB", "MB", "GB", "TB", "PB"};
    std::size_t unit = 0;
    while (bytes >= 999.5 && unit + 1 < kUnits.size()) {
        bytes /= 1000;
        ++unit;
    }
    return formatted(bytes < 10 && unit > 0 ? "%.1f %s" : "%.0f %s", bytes, kUnits.at(unit));
}

std::string counted(int count, const std::string& noun) {
    return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

}  // namespace nearstep
