// The limits of a key: which values it accepts.
#pragma once

#include <limits>
#include <string_view>

namespace nearstep::config {

struct Limits {
    double lowest = -std::numeric_limits<double>::max();
    double highest = std::numeric_limits<double>::max();
    bool excludes_lowest = false;
    bool excludes_highest = false;
    // A word that may stand in place of a list of numbers or an optional number, and is stored as
    // none; empty: no word may.
    std::string_view word = {};
    bool may_be_empty = false;    // a text or a list
    bool may_have_lines = false;  // a text may have line breaks and other control characters

    // Whether it is a number in the range; false for NaN.
    constexpr bool hold(double number) const {
        return (excludes_lowest ? number > lowest : number >= lowest) &&
               (excludes_highest ? number < highest : number <= highest);
    }
};

constexpr Limits anything() { return {}; }
constexpr Limits between(double lowest, double highest) {
    return {.lowest = lowest, .highest = highest};
}
constexpr Limits above(double lowest) { return {.lowest = lowest, .excludes_lowest = true}; }
constexpr Limits above_zero() { return above(0); }
constexpr Limits not_negative() { return {.lowest = 0}; }
constexpr Limits below_one() { return {.lowest = 0, .highest = 1, .excludes_highest = true}; }
constexpr Limits zero_to_one() { return {.lowest = 0, .highest = 1}; }
constexpr Limits above_zero_to_one() {
    return {.lowest = 0, .highest = 1, .excludes_lowest = true};
}
constexpr Limits or_auto(Limits limits) {
    limits.word = "auto";
    return limits;
}
constexpr Limits may_be_empty(Limits limits = {}) {
    limits.may_be_empty = true;
    return limits;
}
constexpr Limits json_or_nothing() { return {.may_be_empty = true, .may_have_lines = true}; }

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
constexpr double kMostRate = 1e12;  // of a site, or another of its numbers, in their units

}  // namespace nearstep::config
