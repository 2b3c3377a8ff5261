// Computes counter-based random numbers. Used for start values, the data's order and stochastic
// rounding.
#include "base/random.hpp"

#include <cmath>

namespace nearstep {

namespace {

std::uint64_t mix(std::uint64_t value) {
    value += 0x9E3779B97F4A7C15U;
    value = (value ^ (value >> 30U)) * 0xBF58476D1CE4E5B9U;
    value = (value ^ (value >> 27U)) * 0x94D049BB133111EBU;
    return value ^ (value >> 31U);
}

}  // namespace

std::uint64_t random_bits(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
    return mix(mix(mix(seed) ^ stream) ^ index);
}

double random_uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
    return static_cast<double>(random_bits(seed, stream, index) >> 11U) * 0x1p-53;
}

double random_normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
    constexpr double kTwoPi = 6.283185307179586;
    const double radius = 1.0 - random_uniform(seed, stream, 2 * index);  // in (0, 1]
    const double angle = random_uniform(seed, stream, 2 * index + 1);
    return std::sqrt(-2.0 * std::log(radius)) * std::cos(kTwoPi * angle);
}

}  // namespace nearstep
