// The kernels with AVX-512. Kernels of deltas handle sixteen to 64 parameters at a time.
// codec_kernels.cpp chooses them. Nothing here may be a function that the linker shares with other
// sources: such a function could contain instructions that another CPU lacks.
#include "codec/codec_kernels_body.hpp"
#include "codec/delta_words_body.hpp"

#include <immintrin.h>

namespace nearstep::codec {

namespace {

using Half = std::uint16_t;

__m512i load(const Half* from) { return _mm512_loadu_si512(from); }

__m256i load16(const Half* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

// Uses full masks because g++ 12 warns about the undefined operands that its own header gives the
// plain forms (g++ bug 105593).
__m512i widened(__m256i values) { return _mm512_maskz_cvtepu16_epi32(0xFFFF, values); }

__m256i narrowed(__m512i values) { return _mm512_maskz_cvtepi32_epi16(0xFFFF, values); }

Word join(__mmask32 first, __mmask32 second) { return (static_cast<Word>(second) << 32U) | first; }

arith::DeltaCensus compare(const Half* old, const Half* fresh, Word* plus, Word* minus) {
    const __m512i one = _mm512_set1_epi16(1);
    const __m512i all = _mm512_set1_epi16(-1);
    std::uint32_t changed = 0;
    std::uint32_t escaped = 0;
    for (std::size_t word = 0; word < kBitmapWords; ++word) {
        const std::size_t i = word * 64;
        const __m512i d0 = _mm512_sub_epi16(load(fresh + i), load(old + i));
        const __m512i d1 = _mm512_sub_epi16(load(fresh + i + 32), load(old + i + 32));
        const Word differs = join(_mm512_test_epi16_mask(d0, d0), _mm512_test_epi16_mask(d1, d1));
        const Word up = join(_mm512_cmpeq_epi16_mask(d0, one), _mm512_cmpeq_epi16_mask(d1, one));
        const Word down = join(_mm512_cmpeq_epi16_mask(d0, all), _mm512_cmpeq_epi16_mask(d1, all));
        plus[word] = differs & ~down;
        minus[word] = differs & ~up;
        changed += static_cast<std::uint32_t>(__builtin_popcountll(differs));
        escaped += static_cast<std::uint32_t>(__builtin_popcountll(differs & ~(up | down)));
    }
    return {changed, escaped};
}

// Writes the elements whose bit is set, then zeros up to sixteen elements. Uses 32-bit elements
// because AVX-512 without VBMI2 compresses no smaller ones.
Half* put16(__m256i values, unsigned bits, Half* out) {
    const __m512i picked =
        _mm512_maskz_compress_epi32(static_cast<__mmask16>(bits), widened(values));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), narrowed(picked));
    return out + __builtin_popcount(bits);
}

void pick_values(const Word* bits, const Half* values, Half* out) {
    for (std::size_t word = 0; word < kBitmapWords; ++word) {
        Word rest = bits[word];
        for (const Half* from = values + word * 64; rest != 0; rest >>= 16U, from += 16) {
            out = put16(load16(from), static_cast<unsigned>(rest & 0xFFFFU), out);
        }
    }
}

void pick_indices(const Word* bits, Half* out) {
    const __m256i lanes = _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (std::size_t word = 0; word < kBitmapWords; ++word) {
        Word rest = bits[word];
        for (std::size_t first = word * 64; rest != 0; rest >>= 16U, first += 16) {
            const __m256i indices =
                _mm256_add_epi16(_mm256_set1_epi16(static_cast<short>(first)), lanes);
            out = put16(indices, static_cast<unsigned>(rest & 0xFFFFU), out);
        }
    }
}

// Takes the next values and places each at its set bit.
__m256i place16(unsigned bits, const Half*& values) {
    const __m512i placed =
        _mm512_maskz_expand_epi32(static_cast<__mmask16>(bits), widened(load16(values)));
    values += __builtin_popcount(bits);
    return narrowed(placed);
}

void apply32(std::uint32_t up, std::uint32_t down, const Half*& values, Half* at) {
    const __m512i one = _mm512_set1_epi16(1);
    const std::uint32_t escapes = up & down;
    __m512i moved = load(at);
    moved = _mm512_mask_add_epi16(moved, up, moved, one);
    // For escapes, the steps up and down cancel out.
    moved = _mm512_mask_sub_epi16(moved, down, moved, one);
    if (escapes != 0) {
        const __m256i first = place16(escapes & 0xFFFFU, values);
        const __m256i second = place16(escapes >> 16U, values);
        const __m512i placed =
            _mm512_maskz_inserti64x4(0xFF, _mm512_castsi256_si512(first), second, 1);
        moved = _mm512_mask_mov_epi16(moved, escapes, placed);
    }
    _mm512_storeu_si512(at, moved);
}

void apply(const Word* plus, const Word* minus, const Half* values, Half* target) {
    for (std::size_t word = 0; word < kBitmapWords; ++word) {
        const Word up = plus[word];
        const Word down = minus[word];
        if ((up | down) != 0) {
            Half* at = target + word * 64;
            apply32(static_cast<std::uint32_t>(up), static_cast<std::uint32_t>(down), values, at);
            apply32(static_cast<std::uint32_t>(up >> 32U), static_cast<std::uint32_t>(down >> 32U),
                    values, at + 32);
        }
    }
}

}  // namespace

extern const Kernels avx512_kernels = {
    "avx512", narrow,  widen,       add_widened,  add,  add_squares, encode_piece, decode_add_piece,
    mark,     compare, pick_values, pick_indices, pack, unpack,      count_both,   apply};

}  // namespace nearstep::codec
