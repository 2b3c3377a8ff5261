// Which numbers a key accepts.
#pragma once

#include <limits>

namespace nearstep::config {

struct Limits {
    double lowest = -std::numeric_limits<double>::max();
    double highest = std::numeric_limits<double>::max();
    bool excludes_lowest = false;
    bool excludes_highest = false;

    // False for NaN.
    constexpr bool hold(double number) const {
        return (excludes_lowest ? number > lowest : number >= lowest) &&
               (excludes_highest ? number < highest : number <= highest);
    }
};

constexpr Limits between(double lowest, double highest) {
    return {.lowest = lowest, .highest = highest};
}
constexpr Limits above_zero() { return {.lowest = 0, .excludes_lowest = true}; }
constexpr Limits not_negative() { return {.lowest = 0}; }
constexpr Limits below_one() { return {.lowest = 0, .highest = 1, .excludes_highest = true}; }
constexpr Limits zero_to_one() { return {.lowest = 0, .highest = 1}; }
constexpr Limits above_zero_to_one() {
    return {.lowest = 0, .highest = 1, .excludes_lowest = true};
}

// Larger sizes are surely typing errors, and sizes computed from them could overflow.
constexpr double kMostLayers = 10000;
constexpr double kMostWidth = 1 << 18;
constexpr double kMostHidden = 1 << 20;
constexpr double kMostContext = 1 << 20;
constexpr double kMostWords = 1 << 24;
constexpr double kMostRows = 1 << 24;
constexpr double kMostSteps = 1e12;
constexpr double kMostDevices = 1024;
constexpr double kMostRanks = 1 << 20;
constexpr double kMostTiles = 4096;
constexpr double kMostSlots = 1024;
constexpr double kMostScale = 4294967296.0;
constexpr double kMostSeconds = 86400;

}  // namespace nearstep::config
