// Counter-based random numbers: pure functions of (seed, stream, index). Every layout, rank count
// and restart draws the same numbers.
#pragma once

#include <cstdint>

namespace nearstep {

// 64 random bits: SplitMix64's step (Steele et al. 2014), applied once per argument.
std::uint64_t random_bits(std::uint64_t seed, std::uint64_t stream, std::uint64_t index);

// Uniform in [0, 1), 53 bits.
double random_uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t index);

// Standard normal (Box-Muller on two uniforms).
double random_normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t index);

}  // namespace nearstep
