// The kernels with vectors of 256 bits. Kernels of deltas handle eight or sixteen parameters at a
// time. codec_kernels.cpp chooses them. Nothing here may be a function that the linker shares with
// other sources: such a function could contain instructions that another CPU lacks.
#include "codec/codec_kernels_body.hpp"
#include "codec/delta_words_body.hpp"

#include <immintrin.h>

#include <array>

namespace nearstep::codec {

namespace {

using Half = std::uint16_t;

// For each byte of bits, the shuffle of eight 16-bit elements. `pick` moves the elements whose bit
// is set to the front, `place` moves elements from the front to the set bits. All others become 0.
struct Shuffles {
    using Table = std::array<std::array<std::uint8_t, 16>, 256>;
    alignas(16) Table pick;
    alignas(16) Table place;
};

constexpr Shuffles make_shuffles() {
    Shuffles made{};
    for (unsigned bits = 0; bits < 256; ++bits) {
        for (unsigned i = 0; i < 16; ++i) {
            made.pick[bits][i] = 0x80;
            made.place[bits][i] = 0x80;
        }
        unsigned taken = 0;
        for (unsigned lane = 0; lane < 8; ++lane) {
            if (((bits >> lane) & 1U) != 0) {
                for (unsigned byte = 0; byte < 2; ++byte) {
                    made.pick[bits][2 * taken + byte] = static_cast<std::uint8_t>(2 * lane + byte);
                    made.place[bits][2 * lane + byte] = static_cast<std::uint8_t>(2 * taken + byte);
                }
                ++taken;
            }
        }
    }
    return made;
}

constexpr Shuffles kShuffles = make_shuffles();

__m256i load(const Half* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

__m128i load8(const Half* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }

__m128i shuffle8(__m128i values, const Shuffles::Table& table, unsigned bits) {
    const std::uint8_t* shuffle = table.data()->data() + std::size_t{16} * bits;
    return _mm_shuffle_epi8(values, _mm_load_si128(reinterpret_cast<const __m128i*>(shuffle)));
}

// One bit per 16-bit element of two vectors; elements are all ones or all zeros.
Word sign_bits(__m256i first, __m256i second) {
    const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(first, second), 0xD8);
    return static_cast<std::uint32_t>(_mm256_movemask_epi8(bytes));
}

arith::DeltaCensus compare(const Half* old, const Half* fresh, Word* plus, Word* minus) {
    const __m256i one = _mm256_set1_epi16(1);
    const __m256i all = _mm256_set1_epi16(-1);
    const __m256i zero = _mm256_setzero_si256();
    std::uint32_t changed = 0;
    std::uint32_t escaped = 0;
    for (std::size_t word = 0; word < kBitmapWords; ++word) {
        Word same = 0;
        Word up = 0;
        Word down = 0;
        for (std::size_t half = 0; half < 2; ++half) {
            const std::size_t i = word * 64 + half * 32;
            const __m256i d0 = _mm256_sub_epi16(load(fresh + i), load(old + i));
            const __m256i d1 = _mm256_sub_epi16(load(fresh + i + 16), load(old + i + 16));
            const std::size_t shift = half * 32;
            same |= sign_bits(_mm256_cmpeq_epi16(d0, zero), _mm256_cmpeq_epi16(d1, zero)) << shift;
            up |= sign_bits(_mm256_cmpeq_epi16(d0, one), _mm256_cmpeq_epi16(d1, one)) << shift;
            down |= sign_bits(_mm256_cmpeq_epi16(d0, all), _mm256_cmpeq_epi16(d1, all)) << shift;
        }
        plus[word] = ~same & ~down;
        minus[word] = ~same & ~up;
        changed += static_cast<std::uint32_t>(__builtin_popcountll(~same));
        escaped += static_cast<std::uint32_t>(__builtin_popcountll(~(same | up | down)));
    }
    return {changed, escaped};
}

// Writes the elements whose bit is set, then zeros up to eight elements.
Half* put8(__m128i values, unsigned bits, Half* out) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), shuffle8(values, kShuffles.pick, bits));
    return out + __builtin_popcount(bits);
}

void pick_values(const Word* bits, const Half* values, Half* out) {
    for (std::size_t word = 0; word < kBitmapWords; ++word) {
        Word rest = bits[word];
        for (const Half* from = values + word * 64; rest != 0; rest >>= 8U, from += 8) {
            out = put8(load8(from), static_cast<unsigned>(rest & 0xFFU), out);
        }
    }
}

void pick_indices(const Word* bits, Half* out) {
    const __m128i lanes = _mm_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7);
    for (std::size_t word = 0; word < kBitmapWords; ++word) {
        Word rest = bits[word];
        for (std::size_t first = word * 64; rest != 0; rest >>= 8U, first += 8) {
            const __m128i indices = _mm_add_epi16(_mm_set1_epi16(static_cast<short>(first)), lanes);
            out = put8(indices, static_cast<unsigned>(rest & 0xFFU), out);
        }
    }
}

// Expands sixteen bits to sixteen elements of all ones or all zeros.
__m256i lanes_of(unsigned bits) {
    const __m256i select =
        _mm256_setr_epi16(0x1, 0x2, 0x4, 0x8, 0x10, 0x20, 0x40, 0x80, 0x100, 0x200, 0x400, 0x800,
                          0x1000, 0x2000, 0x4000, static_cast<short>(0x8000));
    const __m256i spread = _mm256_set1_epi16(static_cast<short>(bits));
    return _mm256_cmpeq_epi16(_mm256_and_si256(spread, select), select);
}

// Takes the next values and places each at its set bit.
__m256i place16(unsigned bits, const Half*& values) {
    const unsigned low = bits & 0xFFU;
    const unsigned high = bits >> 8U;
    const __m128i first = shuffle8(load8(values), kShuffles.place, low);
    values += __builtin_popcount(low);
    const __m128i second = shuffle8(load8(values), kShuffles.place, high);
    values += __builtin_popcount(high);
    return _mm256_set_m128i(second, first);
}

void apply(const Word* plus, const Word* minus, const Half* values, Half* target) {
    for (std::size_t word = 0; word < kBitmapWords; ++word) {
        Word up = plus[word];
        Word down = minus[word];
        for (Half* at = target + word * 64; (up | down) != 0; up >>= 16U, down >>= 16U, at += 16) {
            const auto escapes = static_cast<unsigned>(up & down & 0xFFFFU);
            // For escapes, the steps up and down cancel out.
            __m256i moved = _mm256_sub_epi16(load(at), lanes_of(static_cast<unsigned>(up)));
            moved = _mm256_add_epi16(moved, lanes_of(static_cast<unsigned>(down)));
            if (escapes != 0) {
                const __m256i placed = place16(escapes, values);
                moved = _mm256_blendv_epi8(moved, placed, lanes_of(escapes));
            }
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), moved);
        }
    }
}

}  // namespace

extern const Kernels avx2_kernels = {
    "avx2", narrow,  widen,       add_widened,  add,  add_squares, encode_piece, decode_add_piece,
    mark,   compare, pick_values, pick_indices, pack, unpack,      count_both,   apply};

}  // namespace nearstep::codec
