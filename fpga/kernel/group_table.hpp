// The table of a launch's parameter groups, written by the host and read by the updater: one word
// of scalars per group, then runs of 32 bits. C++14, no exceptions, no containers.
#pragma once

#include "fpga/kernel/arithmetic.hpp"
#include "fpga/kernel/word.hpp"

#include <cstdint>

namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace fpga {

constexpr std::uint32_t kMostParameterGroups = 16;

// Runs end at multiples of this many elements of their tile, the number decoded per cycle.
constexpr std::uint32_t kRunElems = 16;

// --- Scalars -------------------------------------------------------------------------------------

constexpr std::uint32_t kOptimizerUnit = 9;
constexpr std::uint32_t kSkippedUnit = 10;

// gradient_scale and random_key are arguments of the launch.
inline Word group_word(const UpdateScalars& scalars, bool is_skipped) {
    return {{bits_of(scalars.beta1), bits_of(scalars.one_minus_beta1), bits_of(scalars.beta2),
             bits_of(scalars.one_minus_beta2), bits_of(scalars.epsilon),
             bits_of(scalars.decay_factor), bits_of(scalars.gradient_decay),
             bits_of(scalars.step_size), bits_of(scalars.root_scale),
             static_cast<std::uint32_t>(scalars.optimizer), is_skipped ? 1U : 0U}};
}

inline UpdateScalars scalars_of_group(const Word& word, float gradient_scale) {
    UpdateScalars scalars;
    scalars.gradient_scale = gradient_scale;
    scalars.beta1 = float_of(word.of[0]);
    scalars.one_minus_beta1 = float_of(word.of[1]);
    scalars.beta2 = float_of(word.of[2]);
    scalars.one_minus_beta2 = float_of(word.of[3]);
    scalars.epsilon = float_of(word.of[4]);
    scalars.decay_factor = float_of(word.of[5]);
    scalars.gradient_decay = float_of(word.of[6]);
    scalars.step_size = float_of(word.of[7]);
    scalars.root_scale = float_of(word.of[8]);
    scalars.optimizer = static_cast<Optimizer>(word.of[kOptimizerUnit]);
    return scalars;
}

// --- Runs ----------------------------------------------------------------------------------------

// `end` counts units of kRunElems within the tile. The last run of a tile ends with it.
constexpr std::uint32_t group_run(std::uint32_t end, std::uint32_t group) {
    return (end << 4U) | group;
}
constexpr std::uint32_t end_of_run(std::uint32_t run) { return run >> 4U; }
constexpr std::uint32_t group_of_run(std::uint32_t run) { return run & 15U; }

// The table word that holds run number `run`, and the run's place in it.
constexpr std::uint32_t word_of_run(std::uint32_t run) {
    return kMostParameterGroups + run / kWordUnits;
}
constexpr std::uint32_t unit_of_run(std::uint32_t run) { return run % kWordUnits; }

}  // namespace fpga
}  // namespace nearstep
