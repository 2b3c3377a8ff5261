// The AVX-512 engine, chosen by update_engine.cpp: what update_engine_body.hpp computes, 32
// elements at a time.
//
// The number of vector instructions limits an update of narrow formats, not memory and not the
// divider, which works meanwhile. So this loads and stores 32 halves at once, packs 64 codes at
// once, and does not convert what is needed in one half only. Internal linkage and `flatten` as in
// update_engine_body.hpp. Masks are full where g++ 12 warns about the plain forms (g++ bug 105593).
#include "csd/update_engine_groups_body.hpp"

#include <immintrin.h>

namespace nearstep {

using Reals = float __attribute__((vector_size(64)));
using Words = std::uint32_t __attribute__((vector_size(64)));

namespace arith {

template <>
struct Root<Reals> {
    static Reals of(Reals values) { return _mm512_maskz_sqrt_ps(0xFFFF, values); }
};

}  // namespace arith

namespace csd {

constexpr std::size_t kLength = 16;  // elements of a vector
constexpr __mmask16 kAll = 0xFFFF;

namespace {

// Two vectors of consecutive elements.
template <typename Vector>
struct Pair {
    Vector low;
    Vector high;
};

inline Words words_of(Reals values) { return reinterpret_cast<Words>(values); }
inline Words words_of(__m512i words) { return reinterpret_cast<Words>(words); }
inline Reals reals_of(Words words) { return reinterpret_cast<Reals>(words); }
inline __m512i raw(Words words) { return reinterpret_cast<__m512i>(words); }

inline Words load(const void* from) { return words_of(_mm512_loadu_si512(from)); }
inline void store(void* to, Words words) { _mm512_storeu_si512(to, raw(words)); }

// --- 32 elements in memory -----------------------------------------------------------------------

inline Words permute_halves(const std::array<std::uint16_t, 32>& order, Words halves) {
    return words_of(
        _mm512_maskz_permutexvar_epi16(0xFFFFFFFF, raw(load(order.data())), raw(halves)));
}

inline Pair<Reals> load_pair(const float* from) {
    return {reals_of(load(from)), reals_of(load(from + kLength))};
}
inline Pair<Reals> load_pair(const std::uint16_t* from) {
    // Halves i and 16 + i come to the same word.
    static constexpr std::array<std::uint16_t, 32> kOrder = {
        0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const Words both = permute_halves(kOrder, load(from));
    return {reals_of(both << 16U), reals_of(both & 0xFFFF0000U)};
}

// Streams whole cache lines past the caches if `streams`, so that they are not read before they are
// written.
inline void put(void* to, Words words, bool streams) {
    if (streams) {
        _mm512_stream_si512(static_cast<__m512i*>(to), raw(words));
    } else {
        store(to, words);
    }
}
inline void put_pair(float* to, Pair<Reals> values, bool streams) {
    put(to, words_of(values.low), streams);
    put(to + kLength, words_of(values.high), streams);
}

// The upper halves of two vectors, in the order of elements.
inline Words upper_halves(Pair<Words> words) {
    static constexpr std::array<std::uint16_t, 32> kOrder = {
        0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
        1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
    constexpr __mmask32 kOdd = 0xAAAAAAAA;
    return permute_halves(
        kOrder, words_of(_mm512_mask_blend_epi16(kOdd, raw(words.low >> 16U), raw(words.high))));
}

// Loads gradients and converts them as widen_gradient() does.
inline Pair<Reals> load_gradient(const float* from) { return load_pair(from); }
inline Pair<Reals> load_gradient(const std::uint16_t* from) {
    const Pair<Reals> wide = load_pair(from);
    return {0.0F + wide.low, 0.0F + wide.high};
}

// --- Rounding to bf16 ----------------------------------------------------------------------------
// In the upper halves of the words. Values are results of arithmetic, so NaN is already quiet.

inline __mmask16 is_number(Reals values) { return _mm512_cmp_ps_mask(values, values, _CMP_ORD_Q); }

// Rounds to nearest as to_bf16() does.
inline Words round_to_nearest(Reals values) {
    const Words bits = words_of(values);
    const Words addend = ((bits >> 16U) & 1U) + 0x7FFFU;
    return bits + words_of(_mm512_maskz_mov_epi32(is_number(values), raw(addend)));
}

// Like arith::round_to_bf16() with the upper or lower halves of rounding_bits(), from
// unfolded_bits().
inline Words round_by_upper(Reals values, Words unfolded) {
    return words_of(values) +
           words_of(_mm512_maskz_srli_epi32(is_number(values), raw(unfolded), 16));
}
inline Words round_by_lower(Reals values, Words unfolded) {
    const __m512i lower = raw((unfolded ^ (unfolded >> 16U)) & 0xFFFFU);
    return words_of(values) + words_of(_mm512_maskz_mov_epi32(is_number(values), lower));
}

inline Words round_to_nearest(Pair<Reals> values) {
    return upper_halves({round_to_nearest(values.low), round_to_nearest(values.high)});
}
inline Words round_by_upper(Pair<Reals> values, Pair<Words> unfolded) {
    return upper_halves(
        {round_by_upper(values.low, unfolded.low), round_by_upper(values.high, unfolded.high)});
}
inline Words round_by_lower(Pair<Reals> values, Pair<Words> unfolded) {
    return upper_halves(
        {round_by_lower(values.low, unfolded.low), round_by_lower(values.high, unfolded.high)});
}

// --- 8-bit moments -------------------------------------------------------------------------------

inline Words larger_of_three(Words a, Words b, Words c) {
    const __m512i of_two = _mm512_maskz_max_epu32(kAll, raw(b), raw(c));
    return words_of(_mm512_maskz_max_epu32(kAll, raw(a), of_two));
}
// The larger magnitudes, as words.
inline Words larger(Words largest, Pair<Reals> values) {
    return larger_of_three(largest, words_of(values.low) & 0x7FFFFFFFU,
                           words_of(values.high) & 0x7FFFFFFFU);
}
// Like larger(), for roots. Only NaN may have a sign, and is larger than all with and without.
inline Words larger_roots(Words largest, Pair<Reals> roots) {
    return larger_of_three(largest, words_of(roots.low), words_of(roots.high));
}
inline std::uint32_t largest_of(Words words) {
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < kLength; ++i) {
        largest = words[i] > largest ? words[i] : largest;
    }
    return largest;
}

inline Reals decode(const std::int8_t* codes, float scale) {
    const auto* from = reinterpret_cast<const __m128i*>(codes);
    const __m512i wide = _mm512_maskz_cvtepi8_epi32(kAll, _mm_loadu_si128(from));
    return _mm512_maskz_cvtepi32_ps(kAll, wide) * (1 / arith::kMoment1Codes) * scale;
}
inline Reals decode(const std::uint8_t* codes, float scale) {
    const auto* from = reinterpret_cast<const __m128i*>(codes);
    const __m512i wide = _mm512_maskz_cvtepu8_epi32(kAll, _mm_loadu_si128(from));
    const Reals root2 = _mm512_maskz_cvtepi32_ps(kAll, wide) * (1 / arith::kRoot2Codes) * scale;
    return root2 * root2;
}

// The conversion rounds to nearest even, as the sum with arith::kRounder does.
inline __m512i encode(const float* values, float per_unit) {
    return _mm512_maskz_cvtps_epi32(kAll, reals_of(load(values)) * per_unit);
}
inline __m512i encode_pair(const float* values, float per_unit) {
    return _mm512_packs_epi32(encode(values, per_unit), encode(values + kLength, per_unit));
}
// 64 codes that were packed within lanes of 128 bits.
inline __m512i in_order(__m512i packed) {
    const Words order = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    return _mm512_maskz_permutexvar_epi32(kAll, raw(order), packed);
}

inline void encode_block(const float* values, float scale, std::int8_t* codes, bool streams) {
    const float per_unit = arith::kMoment1Codes / scale;
    for (std::size_t i = 0; i < kBlockElems; i += 4 * kLength) {
        const __m512i packed = _mm512_packs_epi16(encode_pair(values + i, per_unit),
                                                  encode_pair(values + i + 2 * kLength, per_unit));
        put(codes + i, words_of(in_order(packed)), streams);
    }
}

// A bit for each of 64 roots: is it above zero?
inline __mmask64 above_zero(const float* roots) {
    const auto of_vector = [&](std::size_t at) -> __mmask64 {
        return _mm512_cmp_ps_mask(reals_of(load(roots + at)), Reals{}, _CMP_GT_OQ);
    };
    return of_vector(0) | of_vector(kLength) << 16U | of_vector(2 * kLength) << 32U |
           of_vector(3 * kLength) << 48U;
}
inline void encode_block(const float* roots, float scale, std::uint8_t* codes, bool streams) {
    const float per_unit = arith::kRoot2Codes / scale;
    for (std::size_t i = 0; i < kBlockElems; i += 4 * kLength) {
        __m512i all = in_order(_mm512_packus_epi16(encode_pair(roots + i, per_unit),
                                                   encode_pair(roots + i + 2 * kLength, per_unit)));
        const __mmask64 zeros = _mm512_testn_epi8_mask(all, all);
        if (zeros != 0) [[unlikely]] {
            all = _mm512_mask_mov_epi8(all, zeros & above_zero(roots + i), _mm512_set1_epi8(1));
        }
        put(codes + i, words_of(all), streams);
    }
}
template <typename Code>
inline float encode_or_clear(const float* values, float scale, Code* codes, bool streams) {
    if (arith::has_codes(scale)) {
        encode_block(values, scale, codes, streams);
    } else {
        __builtin_memset(codes, 0, kBlockElems);
    }
    return scale;
}

// --- Moments in storage --------------------------------------------------------------------------

inline Pair<Reals> load_moment(const std::uint16_t* from, float) { return load_pair(from); }
template <typename Code>
inline Pair<Reals> load_moment(const Code* from, float scale) {
    return {decode(from, scale), decode(from + kLength, scale)};
}

// unfolded_bits() of 32 elements; the first has this index in its tile.
inline Pair<Words> random_pair(arith::TileKey key, std::uint32_t index) {
    const Words low = Words{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + index;
    return {arith::unfolded_bits(key, low),
            arith::unfolded_bits(key, low + static_cast<std::uint32_t>(kLength))};
}

// Which results are written past the caches: whole lines of parameters, and new state beside the
// old one.
struct Streams {
    bool state;
    bool parameters;
};

inline bool is_line(const void* at) { return reinterpret_cast<std::uintptr_t>(at) % 64 == 0; }

inline Streams streams_of(const UpdateRun& run) {
    const bool is_beside = run.old.master != nullptr && is_line(run.state.master) &&
                           is_line(run.state.moment1) && is_line(run.state.moment2);
    return {run.streams && is_beside, run.streams && is_line(run.parameters)};
}

// --- The update ----------------------------------------------------------------------------------

// Values that are kept of a block between the loops over it. A processor looks ahead a few hundred
// instructions; in one loop for moments and masters it would overlap the long chains of operations
// of only a few vectors.
struct WideBlock {
    alignas(64) std::array<float, kBlockElems> directions;
    alignas(64) std::array<float, kBlockElems> moment1;  // if it has codes and is no direction
    alignas(64) std::array<float, kBlockElems> root2;
    Words largest1;  // bits of the largest magnitudes
    Words largest2;
};

// The first loop computes the moments. Moments that are stored without codes are final after it.
template <Optimizer kOptimizer, StateFormat kFormat, typename Gradient>
inline void update_moments_of(const UpdateScalars& scalars, const UpdateRun& run, Streams streams,
                              std::size_t at, WideBlock& wide) {
    using Types = Stored<kFormat>;
    const auto* gradient = static_cast<const Gradient*>(run.gradient) + at;
    const StatePointers& from = old_state(run);
    const Arrays<kFormat> old = arrays_at<kFormat>(from, at);
    const Arrays<kFormat> updated = arrays_at<kFormat>(run.state, at);
    const arith::TileKey key = run.key;
    const std::uint32_t first = run.first + static_cast<std::uint32_t>(at);
    BlockScales scales = {0, 0};
    if constexpr (Types::kHasCodes) {
        scales = {from.scale1[at / kBlockElems], from.scale2[at / kBlockElems]};
    }
    Words largest1 = {};
    Words largest2 = {};
    for (std::uint32_t i = 0; i < kBlockElems; i += 2 * kLength) {
        const Pair<Reals> g = load_gradient(gradient + i);
        const Pair<Reals> weight = load_pair(old.master + i);
        Pair<Reals> wide1 = load_moment(old.moment1 + i, scales.moment1);
        Pair<Reals> wide2 = load_moment(old.moment2 + i, scales.moment2);
        const Pair<Reals> directions = {
            arith::update_moments(kOptimizer, scalars, g.low, weight.low, wide1.low, wide2.low),
            arith::update_moments(kOptimizer, scalars, g.high, weight.high, wide1.high,
                                  wide2.high)};
        put_pair(&wide.directions[i], directions, false);
        const Pair<Reals> root2 = {arith::Root<Reals>::of(wide2.low),
                                   arith::Root<Reals>::of(wide2.high)};
        if constexpr (uses_moment2(kOptimizer)) {
            put_pair(&wide.root2[i], root2, false);
        }
        if constexpr (Types::kHasCodes) {
            largest1 = larger(largest1, wide1);
            largest2 = larger_roots(largest2, root2);
            if constexpr (!is_moment1_direction(kOptimizer)) {
                put_pair(&wide.moment1[i], wide1, false);
            }
        } else {
            const Pair<Words> random = random_pair(key, first + i);
            if constexpr (uses_moment1(kOptimizer)) {
                put(updated.moment1 + i, round_by_lower(wide1, random), streams.state);
            }
            if constexpr (uses_moment2(kOptimizer)) {
                put(updated.moment2 + i, round_by_upper(wide2, random), streams.state);
            }
        }
    }
    wide.largest1 = largest1;
    wide.largest2 = largest2;
}

// The second loop computes the masters, and the parameters if they are bf16.
template <Optimizer kOptimizer, StateFormat kFormat>
inline void update_masters_of(const UpdateScalars& scalars, const UpdateRun& run, Streams streams,
                              std::size_t at, const WideBlock& wide) {
    const auto* old_master = arrays_at<kFormat>(old_state(run), at).master;
    auto* master = arrays_at<kFormat>(run.state, at).master;
    auto* parameters = static_cast<std::uint16_t*>(run.parameters) + at;
    const bool has_halves = run.parameter_dtype == Dtype::bf16;
    const arith::TileKey key = run.key;
    const std::uint32_t first = run.first + static_cast<std::uint32_t>(at);
    for (std::uint32_t i = 0; i < kBlockElems; i += 2 * kLength) {
        Pair<Reals> weight = load_pair(old_master + i);
        const Pair<Reals> direction = load_pair(&wide.directions[i]);
        const Pair<Reals> root2 = uses_moment2(kOptimizer) ? load_pair(&wide.root2[i]) : direction;
        arith::update_master(kOptimizer, scalars, direction.low, root2.low, weight.low);
        arith::update_master(kOptimizer, scalars, direction.high, root2.high, weight.high);
        Words halves = {};
        if constexpr (kFormat == StateFormat::compact) {
            halves = round_by_upper(weight, random_pair(key, first + i));
            put(master + i, halves, streams.state);
        } else {
            put_pair(master + i, weight, streams.state);
            halves = round_to_nearest(weight);
        }
        if (has_halves) {
            put(parameters + i, halves, streams.parameters);
        }
    }
}

template <Optimizer kOptimizer, StateFormat kFormat>
inline void encode_moments_of(const UpdateRun& run, Streams streams, std::size_t at,
                              const WideBlock& wide) {
    using Types = Stored<kFormat>;
    const std::size_t block = at / kBlockElems;
    if constexpr (uses_moment1(kOptimizer)) {
        const auto& values = is_moment1_direction(kOptimizer) ? wide.directions : wide.moment1;
        run.state.scale1[block] = encode_or_clear(
            values.data(), arith::scale_of_moment1(largest_of(wide.largest1)),
            static_cast<typename Types::Moment1*>(run.state.moment1) + at, streams.state);
    }
    if constexpr (uses_moment2(kOptimizer)) {
        run.state.scale2[block] = encode_or_clear(
            wide.root2.data(), arith::scale_of_root2(largest_of(wide.largest2)),
            static_cast<typename Types::Moment2*>(run.state.moment2) + at, streams.state);
    }
}

// Not inlined, so that registers can hold the constants of the loops.
template <Optimizer kOptimizer, StateFormat kFormat, typename Gradient>
[[gnu::flatten, gnu::noinline]] inline std::size_t update_blocks(const UpdateScalars& of_step,
                                                                 const UpdateRun& run) {
    using Types = Stored<kFormat>;
    const UpdateScalars scalars = of_step;
    const Streams streams = streams_of(run);
    WideBlock wide;
    std::size_t at = 0;
    for (; at + kBlockElems <= run.count; at += kBlockElems) {
        fetch_ahead(static_cast<const Gradient*>(run.gradient) + at, kBlockElems);
        fetch_state_ahead<kFormat>(arrays_at<kFormat>(old_state(run), at), kBlockElems);
        update_moments_of<kOptimizer, kFormat, Gradient>(scalars, run, streams, at, wide);
        update_masters_of<kOptimizer, kFormat>(scalars, run, streams, at, wide);
        if constexpr (Types::kHasCodes) {
            encode_moments_of<kOptimizer, kFormat>(run, streams, at, wide);
        }
        if (run.parameter_dtype != Dtype::bf16) {
            FloatBlock other;
            deliver_block<kFormat>(run, other, at, kBlockElems);
        }
    }
    _mm_sfence();  // streamed lines become visible before what follows
    return at;
}

// fp32 state in one loop.
template <Optimizer kOptimizer, typename Gradient>
[[gnu::flatten, gnu::noinline]] inline std::size_t update_fp32_blocks(const UpdateScalars& of_step,
                                                                      const UpdateRun& run) {
    constexpr std::size_t kElems = 2 * kLength;
    const UpdateScalars scalars = of_step;
    const auto* gradient = static_cast<const Gradient*>(run.gradient);
    auto* parameters = static_cast<std::uint16_t*>(run.parameters);
    const bool has_halves = run.parameter_dtype == Dtype::bf16;
    const Arrays<StateFormat::fp32> old = arrays_at<StateFormat::fp32>(old_state(run), 0);
    const Arrays<StateFormat::fp32> updated = arrays_at<StateFormat::fp32>(run.state, 0);
    const Streams streams = streams_of(run);
    std::size_t at = 0;
    for (; at + kElems <= run.count; at += kElems) {
        fetch_ahead(gradient + at, kElems);
        fetch_state_ahead<StateFormat::fp32>(arrays_at<StateFormat::fp32>(old_state(run), at),
                                             kElems);
        const Pair<Reals> g = load_gradient(gradient + at);
        Pair<Reals> weight = load_pair(old.master + at);
        Pair<Reals> wide1 = load_pair(old.moment1 + at);
        Pair<Reals> wide2 = load_pair(old.moment2 + at);
        arith::update_lane(kOptimizer, scalars, g.low, weight.low, wide1.low, wide2.low);
        arith::update_lane(kOptimizer, scalars, g.high, weight.high, wide1.high, wide2.high);
        put_pair(updated.master + at, weight, streams.state);
        if constexpr (uses_moment1(kOptimizer)) {
            put_pair(updated.moment1 + at, wide1, streams.state);
        }
        if constexpr (uses_moment2(kOptimizer)) {
            put_pair(updated.moment2 + at, wide2, streams.state);
        }
        if (has_halves) {
            put(parameters + at, round_to_nearest(weight), streams.parameters);
        }
    }
    if (!has_halves) {
        FloatBlock other;
        deliver_block<StateFormat::fp32>(run, other, 0, at);
    }
    _mm_sfence();
    return at;
}

struct WideBlocks {
    // See PlainBlocks.
    template <Optimizer kOptimizer, StateFormat kFormat, typename Gradient>
    static std::size_t update(const UpdateScalars& scalars, const UpdateRun& run) {
        if constexpr (kFormat == StateFormat::fp32) {
            return update_fp32_blocks<kOptimizer, Gradient>(scalars, run);
        } else {
            return update_blocks<kOptimizer, kFormat, Gradient>(scalars, run);
        }
    }
};

}  // namespace

extern const UpdateEngine avx512_engine = {"avx512", update_run<WideBlocks>,
                                           update_groups_run<WideBlocks>, round_run, increment_run};

}  // namespace csd
}  // namespace nearstep
