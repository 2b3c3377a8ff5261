// The body of every engine. Each engine's source compiles it for its own instruction set.
//
// Everything here has internal linkage, and `flatten` inlines every call. Otherwise the linker
// could share a function with other sources, and its instructions may be missing on another CPU.
#pragma once

#include "csd/update_engine.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

// For a loop whose iterations are independent, which the compiler cannot see if arrays may be the
// same.
#if defined(__clang__)
#define NEARSTEP_INDEPENDENT_ITERATIONS _Pragma("clang loop vectorize(assume_safety)")
#else
#define NEARSTEP_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#endif

namespace nearstep::csd {
namespace {

using arith::kBlockElems;
using arith::Optimizer;
using arith::Stored;
using arith::TileKey;
using arith::UpdateScalars;

// Values kept in the first-level cache until a block's scales are known or its parameters
// delivered.
struct FloatBlock {
    alignas(64) std::array<float, kBlockElems> master;
    alignas(64) std::array<float, kBlockElems> moment1;
    alignas(64) std::array<float, kBlockElems> root2;
};

// Prefetches `count` elements at a fixed distance after `from`: hardware prefetch stops at every
// page, and an update reads four or five arrays at once. Addresses past the end of an array are
// harmless; a prefetch only affects the cache.
template <typename T>
inline void fetch_ahead(const T* from, std::size_t count) {
    constexpr std::size_t kAheadElems = 1024;  // measured: 256, 512, 1536 and 2048 are slower
    constexpr std::size_t kLineBytes = 64;
    const char* begin = reinterpret_cast<const char*>(from) + kAheadElems * sizeof(T);
    for (std::size_t at = 0; at < count * sizeof(T); at += kLineBytes) {
        __builtin_prefetch(begin + at);
    }
}

inline void widen_bf16(const std::uint16_t* __restrict from, float* __restrict to,
                       std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
        to[i] = from_bf16(from[i]);
    }
}

inline void narrow_to_bf16(const float* __restrict from, std::uint16_t* __restrict to,
                           std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
        to[i] = to_bf16(from[i]);
    }
}

inline float widen(float value) { return value; }
inline float widen(std::uint16_t half) { return from_bf16(half); }

inline void narrow(float value, std::uint32_t, float& to) { to = value; }
inline void narrow(float value, std::uint32_t random, std::uint16_t& to) {
    to = arith::round_to_bf16(value, random);
}

// The arrays of consecutive elements. Old and new ones are the same or do not overlap.
template <StateFormat kFormat>
struct Arrays {
    typename Stored<kFormat>::Master* master;
    typename Stored<kFormat>::Moment1* moment1;
    typename Stored<kFormat>::Moment2* moment2;
};

template <StateFormat kFormat>
inline Arrays<kFormat> arrays_at(const StatePointers& state, std::size_t at) {
    using Types = Stored<kFormat>;
    return {static_cast<typename Types::Master*>(state.master) + at,
            static_cast<typename Types::Moment1*>(state.moment1) + at,
            static_cast<typename Types::Moment2*>(state.moment2) + at};
}

template <StateFormat kFormat>
inline void fetch_state_ahead(const Arrays<kFormat>& from, std::size_t count) {
    fetch_ahead(from.master, count);
    fetch_ahead(from.moment1, count);
    fetch_ahead(from.moment2, count);
}

// A sum that starts from 0, as codec::decode_sum defines it: -0 becomes 0.
inline float widen_gradient(float sum) { return sum; }
inline float widen_gradient(std::uint16_t half) { return 0.0F + from_bf16(half); }

// A block's scales before its update.
struct BlockScales {
    float moment1;
    float moment2;
};

// Widens, updates and narrows in one loop, so that the divider overlaps the other work. Moments
// stored as codes go to `wide` until the block's scale is known; of the second moment, its square
// root.
template <Optimizer kOptimizer, StateFormat kFormat, typename Gradient>
inline void update_block(const UpdateScalars& scalars, const Gradient* __restrict gradient,
                         const Arrays<kFormat>& old, const Arrays<kFormat>& updated,
                         BlockScales scales, FloatBlock& __restrict wide, TileKey key,
                         std::uint32_t first, std::uint32_t count) {
    constexpr bool kHasCodes = Stored<kFormat>::kHasCodes;
    const auto* old_master = old.master;
    const auto* old1 = old.moment1;
    const auto* old2 = old.moment2;
    auto* master = updated.master;
    auto* moment1 = updated.moment1;
    auto* moment2 = updated.moment2;
    NEARSTEP_INDEPENDENT_ITERATIONS
    for (std::uint32_t i = 0; i < count; ++i) {
        const std::uint32_t random = arith::rounding_bits(key, first + i);
        float weight = widen(old_master[i]);
        float wide1 = 0;
        float wide2 = 0;
        if constexpr (kHasCodes) {
            wide1 = arith::decode_moment1(old1[i], scales.moment1);
            wide2 = arith::decode_moment2(old2[i], scales.moment2);
        } else {
            wide1 = widen(old1[i]);
            wide2 = widen(old2[i]);
        }
        arith::update_lane(kOptimizer, scalars, widen_gradient(gradient[i]), weight, wide1, wide2);
        narrow(weight, random >> 16U, master[i]);
        if constexpr (uses_moment1(kOptimizer)) {
            if constexpr (kHasCodes) {
                wide.moment1[i] = wide1;
            } else {
                narrow(wide1, random & 0xFFFFU, moment1[i]);
            }
        }
        if constexpr (uses_moment2(kOptimizer)) {
            if constexpr (kHasCodes) {
                wide.root2[i] = std::sqrt(wide2);
            } else {
                narrow(wide2, random >> 16U, moment2[i]);
            }
        }
    }
}

// Writes the stored new masters in the parameters' format.
template <StateFormat kFormat>
inline void deliver_block(const UpdateRun& run, FloatBlock& wide, std::size_t at,
                          std::size_t count) {
    const auto* master =
        static_cast<const typename Stored<kFormat>::Master*>(run.state.master) + at;
    auto* parameters =
        static_cast<std::byte*>(run.parameters) + at * size_bytes(run.parameter_dtype);
    if constexpr (kFormat == StateFormat::compact) {
        if (run.parameter_dtype == Dtype::bf16) {
            __builtin_memcpy(parameters, master, count * sizeof(std::uint16_t));
        } else {
            widen_bf16(master, wide.master.data(), count);
            convert_from_fp32(wide.master.data(), run.parameter_dtype, parameters, count);
        }
    } else if (run.parameter_dtype == Dtype::bf16) {
        narrow_to_bf16(master, reinterpret_cast<std::uint16_t*>(parameters), count);
    } else {
        convert_from_fp32(master, run.parameter_dtype, parameters, count);
    }
}

// Updates the block of `count` elements from `at` on.
template <Optimizer kOptimizer, StateFormat kFormat, typename Gradient>
inline void run_block(const UpdateScalars& scalars, const UpdateRun& run, FloatBlock& wide,
                      std::size_t at, std::size_t count) {
    const std::size_t block = at / kBlockElems;
    const StatePointers& from = old_state(run);
    const auto* gradient = static_cast<const Gradient*>(run.gradient) + at;
    const Arrays<kFormat> old = arrays_at<kFormat>(from, at);
    const Arrays<kFormat> updated = arrays_at<kFormat>(run.state, at);
    fetch_ahead(gradient, count);
    fetch_state_ahead<kFormat>(old, count);
    BlockScales scales = {0, 0};
    if constexpr (Stored<kFormat>::kHasCodes) {
        scales = {from.scale1[block], from.scale2[block]};
    }
    update_block<kOptimizer, kFormat>(scalars, gradient, old, updated, scales, wide, run.key,
                                      run.first + static_cast<std::uint32_t>(at),
                                      static_cast<std::uint32_t>(count));
    if constexpr (Stored<kFormat>::kHasCodes && uses_moment1(kOptimizer)) {
        run.state.scale1[block] =
            arith::encode_block<arith::FirstMoment>(wide.moment1.data(), updated.moment1, count);
    }
    if constexpr (Stored<kFormat>::kHasCodes && uses_moment2(kOptimizer)) {
        run.state.scale2[block] =
            arith::encode_block<arith::SecondMoment>(wide.root2.data(), updated.moment2, count);
    }
    deliver_block<kFormat>(run, wide, at, count);
}

using Fp32 = Arrays<StateFormat::fp32>;

template <Optimizer kOptimizer>
inline void update_fp32(const UpdateScalars& scalars, const std::uint16_t* __restrict gradient,
                        float* __restrict master, float* __restrict moment1,
                        float* __restrict moment2, std::uint16_t* __restrict parameters,
                        std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
        arith::update_lane(kOptimizer, scalars, widen_gradient(gradient[i]), master[i], moment1[i],
                           moment2[i]);
        parameters[i] = to_bf16(master[i]);
    }
}

inline void copy_fp32(const Fp32& from, const Fp32& to, std::size_t at, std::size_t count) {
    __builtin_memcpy(to.master + at, from.master + at, count * sizeof(float));
    __builtin_memcpy(to.moment1 + at, from.moment1 + at, count * sizeof(float));
    __builtin_memcpy(to.moment2 + at, from.moment2 + at, count * sizeof(float));
}

// fp32 state with bf16 gradients and parameters: only the gradient is widened, so a single loop
// keeps memory busy throughout. Compilers vectorise it best in place, so new state beside the old
// one begins as a copy, in the first-level cache.
template <Optimizer kOptimizer>
inline void stream_fp32(const UpdateScalars& scalars, const UpdateRun& run) {
    constexpr std::size_t kElems = 32;  // one cache line of the narrowest type
    const auto* gradient = static_cast<const std::uint16_t*>(run.gradient);
    auto* parameters = static_cast<std::uint16_t*>(run.parameters);
    const Fp32 old = arrays_at<StateFormat::fp32>(old_state(run), 0);
    const Fp32 updated = arrays_at<StateFormat::fp32>(run.state, 0);
    const bool is_beside = run.old.master != nullptr;
    const std::size_t count = run.count;
    const UpdateScalars fixed = scalars;
    std::size_t at = 0;
    for (; at + kElems <= count; at += kElems) {
        fetch_ahead(gradient + at, kElems);
        fetch_ahead(old.master + at, kElems);
        fetch_ahead(old.moment1 + at, kElems);
        fetch_ahead(old.moment2 + at, kElems);
        fetch_ahead(parameters + at, kElems);
        if (is_beside) {
            copy_fp32(old, updated, at, kElems);
        }
        update_fp32<kOptimizer>(fixed, gradient + at, updated.master + at, updated.moment1 + at,
                                updated.moment2 + at, parameters + at, kElems);
    }
    if (is_beside) {
        copy_fp32(old, updated, at, count - at);
    }
    update_fp32<kOptimizer>(fixed, gradient + at, updated.master + at, updated.moment1 + at,
                            updated.moment2 + at, parameters + at, count - at);
}

// Updates whole blocks in loops that the compiler vectorises. Other engines may replace it.
struct PlainBlocks {
    // Returns the number of updated elements.
    template <Optimizer kOptimizer, StateFormat kFormat, typename Gradient>
    static std::size_t update(const UpdateScalars& scalars, const UpdateRun& run) {
        if constexpr (kFormat == StateFormat::fp32 && std::is_same_v<Gradient, std::uint16_t>) {
            if (run.parameter_dtype == Dtype::bf16) {
                stream_fp32<kOptimizer>(scalars, run);
                return run.count;
            }
        }
        FloatBlock wide;
        std::size_t at = 0;
        for (; at + kBlockElems <= run.count; at += kBlockElems) {
            // A constant count lets the compiler use whole vectors without a remainder.
            run_block<kOptimizer, kFormat, Gradient>(scalars, run, wide, at, kBlockElems);
        }
        return at;
    }
};

template <typename Blocks, Optimizer kOptimizer, StateFormat kFormat, typename Gradient>
inline void run_blocks_of(const UpdateScalars& scalars, const UpdateRun& run) {
    const std::size_t at = Blocks::template update<kOptimizer, kFormat, Gradient>(scalars, run);
    if (at < run.count) {
        FloatBlock wide;
        run_block<kOptimizer, kFormat, Gradient>(scalars, run, wide, at, run.count - at);
    }
}

template <typename Blocks, Optimizer kOptimizer, StateFormat kFormat>
inline void run_blocks(const UpdateScalars& scalars, const UpdateRun& run) {
    if (run.gradient_dtype == Dtype::bf16) {
        run_blocks_of<Blocks, kOptimizer, kFormat, std::uint16_t>(scalars, run);
    } else {
        run_blocks_of<Blocks, kOptimizer, kFormat, float>(scalars, run);
    }
}

template <typename Blocks, Optimizer kOptimizer>
inline void run_format(const UpdateScalars& scalars, const UpdateRun& run) {
    switch (run.format) {
        case StateFormat::fp32:
            return run_blocks<Blocks, kOptimizer, StateFormat::fp32>(scalars, run);
        case StateFormat::bf16:
            return run_blocks<Blocks, kOptimizer, StateFormat::bf16>(scalars, run);
        case StateFormat::q8:
            return run_blocks<Blocks, kOptimizer, StateFormat::q8>(scalars, run);
        case StateFormat::compact:
            return run_blocks<Blocks, kOptimizer, StateFormat::compact>(scalars, run);
    }
}

// Has the optimizer as a constant: tries one after another.
template <typename Blocks, Optimizer kOptimizer = Optimizer{}>
inline void run_optimizer(const UpdateScalars& scalars, const UpdateRun& run) {
    if (scalars.optimizer == kOptimizer) {
        return run_format<Blocks, kOptimizer>(scalars, run);
    }
    if constexpr (kOptimizer != arith::kLastOptimizer) {
        constexpr auto kNext = static_cast<Optimizer>(static_cast<int>(kOptimizer) + 1);
        return run_optimizer<Blocks, kNext>(scalars, run);
    }
}

// Not inlined into the update of groups, which calls it for each run of blocks.
template <typename Blocks>
[[gnu::flatten, gnu::noinline]] inline void update_run(const UpdateScalars& scalars,
                                                       const UpdateRun& run) {
    // A copy tells the compiler that no store changes it.
    const UpdateScalars fixed = scalars;
    run_optimizer<Blocks>(fixed, run);
}

template <StateFormat kFormat>
inline void round_blocks(const UpdateRun& run) {
    FloatBlock wide;
    for (std::size_t at = 0; at < run.count; at += kBlockElems) {
        const std::size_t count = run.count - at < kBlockElems ? run.count - at : kBlockElems;
        deliver_block<kFormat>(run, wide, at, count);
    }
}

[[gnu::flatten]] inline void round_run(const UpdateRun& run) {
    if (run.format == StateFormat::compact) {
        round_blocks<StateFormat::compact>(run);
    } else {
        round_blocks<StateFormat::fp32>(run);  // q8 and bf16 store the same fp32 masters
    }
}

inline void increment_run(std::uint64_t* words, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
        words[i] += 1;
    }
}

}  // namespace
}  // namespace nearstep::csd
