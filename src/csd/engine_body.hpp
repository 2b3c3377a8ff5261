// The body of every engine; each engine's source compiles it for its own instruction set.
//
// Everything here has internal linkage, and `flatten` inlines all that is called: a function that
// the linker could share with other sources would carry instructions that another CPU lacks.
#pragma once

#include "csd/engine.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace nearstep::csd {
namespace {

using fpga::kBlockElems;
using fpga::Optimizer;
using fpga::TileKey;
using fpga::UpdateScalars;

// An update goes block by block, in stages: widen what is narrow, update in fp32, narrow. A block
// stays in the first cache, and each stage is a loop of one kind that compilers vectorise well.
struct Block {
    alignas(64) std::array<float, kBlockElems> gradient;
    alignas(64) std::array<float, kBlockElems> master;
    alignas(64) std::array<float, kBlockElems> moment1;
    alignas(64) std::array<float, kBlockElems> moment2;
};

inline void widen_bf16(const std::uint16_t* __restrict from, float* __restrict to,
                       std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
        to[i] = from_bf16(from[i]);
    }
}

// A sum that begins with 0, as codec::decode_sum defines it: -0 becomes 0.
inline void widen_gradient(const std::uint16_t* __restrict from, float* __restrict to,
                           std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
        to[i] = 0.0F + from_bf16(from[i]);
    }
}

inline void narrow_to_bf16(const float* __restrict from, std::uint16_t* __restrict to,
                           std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
        to[i] = to_bf16(from[i]);
    }
}

// kKeepsRoots: leaves the root of the second moment, which q8 stores, in its place.
template <Optimizer kOptimizer, bool kKeepsRoots>
inline void update_block(const UpdateScalars& scalars, const float* __restrict gradient,
                         float* __restrict master, float* __restrict moment1,
                         float* __restrict moment2, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
        fpga::update_lane<kOptimizer>(scalars, gradient[i], master[i], moment1[i], moment2[i]);
        if (kKeepsRoots) {
            moment2[i] = std::sqrt(moment2[i]);
        }
    }
}

template <Optimizer kOptimizer>
inline void round_moments(const float* __restrict wide1, const float* __restrict wide2,
                          std::uint16_t* __restrict moment1, std::uint16_t* __restrict moment2,
                          TileKey key, std::uint32_t first, std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
        const std::uint32_t random = fpga::rounding_bits(key, first + i);
        if (uses_moment1(kOptimizer)) {
            moment1[i] = fpga::round_to_bf16(wide1[i], random & 0xFFFFU);
        }
        if (uses_moment2(kOptimizer)) {
            moment2[i] = fpga::round_to_bf16(wide2[i], random >> 16U);
        }
    }
}

inline void round_masters(const float* __restrict wide, std::uint16_t* __restrict master,
                          TileKey key, std::uint32_t first, std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
        master[i] = fpga::round_to_bf16(wide[i], fpga::rounding_bits(key, first + i) >> 16U);
    }
}

inline void decode_block1(const std::int8_t* __restrict codes, float scale,
                          float* __restrict moment1, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
        moment1[i] = fpga::decode_moment1(codes[i], scale);
    }
}

inline void decode_block2(const std::uint8_t* __restrict codes, float scale,
                          float* __restrict moment2, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
        moment2[i] = fpga::decode_moment2(codes[i], scale);
    }
}

inline std::uint32_t largest_of(const float* __restrict values, std::size_t count) {
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint32_t bits = fpga::magnitude_bits(values[i]);
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

inline float encode_block1(const float* __restrict values, std::int8_t* __restrict codes,
                           std::size_t count) {
    const float scale = fpga::scale_of_moment1(largest_of(values, count));
    const bool has_codes = fpga::has_codes(scale);
    const float per_unit = has_codes ? fpga::kMoment1Codes / scale : 0.0F;
    for (std::size_t i = 0; i < count; ++i) {
        codes[i] = has_codes ? fpga::encode_moment1(values[i], per_unit) : std::int8_t{0};
    }
    return scale;
}

inline float encode_block2(const float* __restrict roots, std::uint8_t* __restrict codes,
                           std::size_t count) {
    const float scale = fpga::scale_of_root2(largest_of(roots, count));
    const bool has_codes = fpga::has_codes(scale);
    const float per_unit = has_codes ? fpga::kRoot2Codes / scale : 0.0F;
    for (std::size_t i = 0; i < count; ++i) {
        codes[i] = has_codes ? fpga::encode_root2(roots[i], per_unit) : std::uint8_t{0};
    }
    return scale;
}

// New masters in the parameters' format. `master`: as updated; with compact it is overwritten by
// what was stored.
template <StateFormat kFormat>
inline void deliver_block(const UpdateRun& run, float* master, std::size_t at, std::size_t count) {
    constexpr bool kHasNarrowMasters = kFormat == StateFormat::compact;
    const auto* halves = static_cast<const std::uint16_t*>(run.state.master) + at;
    if (run.parameter_dtype == Dtype::bf16) {
        auto* parameters = static_cast<std::uint16_t*>(run.parameters) + at;
        if (kHasNarrowMasters) {
            __builtin_memcpy(parameters, halves, count * sizeof(std::uint16_t));
        } else {
            narrow_to_bf16(master, parameters, count);
        }
    } else {
        if (kHasNarrowMasters) {
            widen_bf16(halves, master, count);
        }
        auto* parameters = static_cast<std::byte*>(run.parameters);
        convert_from_fp32(master, run.parameter_dtype,
                          parameters + at * size_bytes(run.parameter_dtype), count);
    }
}

// A block's state in fp32: in place where it is stored so, else in the buffers of a Block.
struct WideState {
    float* master;
    float* moment1;
    float* moment2;
};

template <Optimizer kOptimizer, StateFormat kFormat>
inline WideState widen_state(const StatePointers& state, Block& wide, std::size_t at,
                             std::size_t count) {
    if (kFormat == StateFormat::fp32) {
        return {static_cast<float*>(state.master) + at, static_cast<float*>(state.moment1) + at,
                static_cast<float*>(state.moment2) + at};
    }
    float* moment1 = wide.moment1.data();
    float* moment2 = wide.moment2.data();
    if (kFormat == StateFormat::bf16) {
        if (uses_moment1(kOptimizer)) {
            widen_bf16(static_cast<std::uint16_t*>(state.moment1) + at, moment1, count);
        }
        if (uses_moment2(kOptimizer)) {
            widen_bf16(static_cast<std::uint16_t*>(state.moment2) + at, moment2, count);
        }
    } else {
        if (uses_moment1(kOptimizer)) {
            decode_block1(static_cast<std::int8_t*>(state.moment1) + at,
                          state.scale1[at / kBlockElems], moment1, count);
        }
        if (uses_moment2(kOptimizer)) {
            decode_block2(static_cast<std::uint8_t*>(state.moment2) + at,
                          state.scale2[at / kBlockElems], moment2, count);
        }
    }
    if (kFormat != StateFormat::compact) {
        return {static_cast<float*>(state.master) + at, moment1, moment2};
    }
    widen_bf16(static_cast<std::uint16_t*>(state.master) + at, wide.master.data(), count);
    return {wide.master.data(), moment1, moment2};
}

template <Optimizer kOptimizer, StateFormat kFormat>
inline void narrow_state(const UpdateRun& run, const WideState& wide, std::size_t at,
                         std::size_t count) {
    const StatePointers& state = run.state;
    const std::uint32_t first = run.first + static_cast<std::uint32_t>(at);
    if (kFormat == StateFormat::compact) {
        round_masters(wide.master, static_cast<std::uint16_t*>(state.master) + at, run.key, first,
                      static_cast<std::uint32_t>(count));
    }
    if (kFormat == StateFormat::bf16) {
        round_moments<kOptimizer>(wide.moment1, wide.moment2,
                                  static_cast<std::uint16_t*>(state.moment1) + at,
                                  static_cast<std::uint16_t*>(state.moment2) + at, run.key, first,
                                  static_cast<std::uint32_t>(count));
    } else if (kFormat != StateFormat::fp32) {
        if (uses_moment1(kOptimizer)) {
            state.scale1[at / kBlockElems] =
                encode_block1(wide.moment1, static_cast<std::int8_t*>(state.moment1) + at, count);
        }
        if (uses_moment2(kOptimizer)) {
            state.scale2[at / kBlockElems] =
                encode_block2(wide.moment2, static_cast<std::uint8_t*>(state.moment2) + at, count);
        }
    }
}

// The block of `count` elements from `at` on.
template <Optimizer kOptimizer, StateFormat kFormat>
inline void run_block(const UpdateScalars& scalars, const UpdateRun& run, Block& wide,
                      std::size_t at, std::size_t count) {
    constexpr bool kHasRoots = kFormat == StateFormat::q8 || kFormat == StateFormat::compact;
    const float* gradient = static_cast<const float*>(run.gradient) + at;
    if (run.gradient_dtype == Dtype::bf16) {
        widen_gradient(static_cast<const std::uint16_t*>(run.gradient) + at, wide.gradient.data(),
                       count);
        gradient = wide.gradient.data();
    }
    const WideState state = widen_state<kOptimizer, kFormat>(run.state, wide, at, count);
    update_block<kOptimizer, kHasRoots && uses_moment2(kOptimizer)>(
        scalars, gradient, state.master, state.moment1, state.moment2, count);
    narrow_state<kOptimizer, kFormat>(run, state, at, count);
    deliver_block<kFormat>(run, state.master, at, count);
}

template <Optimizer kOptimizer, StateFormat kFormat>
inline void run_blocks(const UpdateScalars& scalars, const UpdateRun& run) {
    Block wide;
    std::size_t at = 0;
    for (; at + kBlockElems <= run.count; at += kBlockElems) {
        // The count is a constant here: whole vectors and no remainder.
        run_block<kOptimizer, kFormat>(scalars, run, wide, at, kBlockElems);
    }
    if (at < run.count) {
        run_block<kOptimizer, kFormat>(scalars, run, wide, at, run.count - at);
    }
}

// fp32 state with bf16 gradients and parameters: nothing to widen but the gradient, so one loop
// does all, and memory is never idle between stages.
template <Optimizer kOptimizer>
inline void stream_fp32(const UpdateScalars& scalars, const std::uint16_t* __restrict gradient,
                        float* __restrict master, float* __restrict moment1,
                        float* __restrict moment2, std::uint16_t* __restrict parameters,
                        std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
        fpga::update_lane<kOptimizer>(scalars, 0.0F + from_bf16(gradient[i]), master[i], moment1[i],
                                      moment2[i]);
        parameters[i] = to_bf16(master[i]);
    }
}

template <Optimizer kOptimizer>
inline void run_format(const UpdateScalars& scalars, const UpdateRun& run) {
    switch (run.format) {
        case StateFormat::fp32:
            if (run.gradient_dtype == Dtype::bf16 && run.parameter_dtype == Dtype::bf16) {
                return stream_fp32<kOptimizer>(
                    scalars, static_cast<const std::uint16_t*>(run.gradient),
                    static_cast<float*>(run.state.master), static_cast<float*>(run.state.moment1),
                    static_cast<float*>(run.state.moment2),
                    static_cast<std::uint16_t*>(run.parameters), run.count);
            }
            return run_blocks<kOptimizer, StateFormat::fp32>(scalars, run);
        case StateFormat::bf16:
            return run_blocks<kOptimizer, StateFormat::bf16>(scalars, run);
        case StateFormat::q8:
            return run_blocks<kOptimizer, StateFormat::q8>(scalars, run);
        case StateFormat::compact:
            return run_blocks<kOptimizer, StateFormat::compact>(scalars, run);
    }
}

[[gnu::flatten]] inline void update_run(const UpdateScalars& scalars, const UpdateRun& run) {
    // A copy, so that the compiler knows that no store changes it.
    const UpdateScalars fixed = scalars;
    switch (fixed.optimizer) {
        case Optimizer::adamw:
            return run_format<Optimizer::adamw>(fixed, run);
        case Optimizer::adam:
            return run_format<Optimizer::adam>(fixed, run);
        case Optimizer::sgd:
            return run_format<Optimizer::sgd>(fixed, run);
        case Optimizer::adagrad:
            return run_format<Optimizer::adagrad>(fixed, run);
        case Optimizer::lion:
            return run_format<Optimizer::lion>(fixed, run);
    }
}

template <StateFormat kFormat>
inline void round_blocks(const UpdateRun& run) {
    alignas(64) std::array<float, kBlockElems> wide;  // of narrow masters
    for (std::size_t at = 0; at < run.count; at += kBlockElems) {
        const std::size_t count = run.count - at < kBlockElems ? run.count - at : kBlockElems;
        deliver_block<kFormat>(run,
                               kFormat == StateFormat::compact
                                   ? wide.data()
                                   : static_cast<float*>(run.state.master) + at,
                               at, count);
    }
}

[[gnu::flatten]] inline void round_run(const UpdateRun& run) {
    if (run.format == StateFormat::compact) {
        round_blocks<StateFormat::compact>(run);
    } else {
        round_blocks<StateFormat::fp32>(run);  // the others' masters are the same
    }
}

inline void increment_run(std::uint64_t* words, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
        words[i] += 1;
    }
}

}  // namespace
}  // namespace nearstep::csd
