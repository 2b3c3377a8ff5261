// The delta codec's loops over bitmap words, for CPUs with BMI2 and POPCNT. Each instruction set's
// source includes its own copy.
#pragma once

#include "codec/codec_kernels.hpp"

#include <immintrin.h>

namespace nearstep::codec {

namespace {

using Word = std::uint64_t;

// `rest` holds `count` bits that do not fill a word yet.
inline void pack(const Word* mask, const Word* bits, Word* out) {
    Word rest = 0;
    unsigned count = 0;
    for (std::size_t word = 0; word < kBitmapWords; ++word) {
        const Word picked = _pext_u64(bits[word], mask[word]);
        const auto more = static_cast<unsigned>(__builtin_popcountll(mask[word]));
        rest |= picked << count;
        if (count + more >= 64) {
            *out++ = rest;
            rest = count == 0 ? 0 : picked >> (64 - count);
            count += more - 64;
        } else {
            count += more;
        }
    }
    if (count > 0) {
        *out = rest;
    }
}

inline void unpack(const Word* mask, const Word* packed, Word* bits) {
    std::size_t at = 0;
    for (std::size_t word = 0; word < kBitmapWords; ++word) {
        const unsigned shift = at % 64;
        // The second word may lie in the slack; then none of its bits are used.
        const Word high = shift == 0 ? 0 : packed[at / 64 + 1] << (64 - shift);
        bits[word] = _pdep_u64((packed[at / 64] >> shift) | high, mask[word]);
        at += static_cast<std::size_t>(__builtin_popcountll(mask[word]));
    }
}

inline std::size_t count_both(const Word* one, const Word* other) {
    std::size_t count = 0;
    for (std::size_t word = 0; word < kBitmapWords; ++word) {
        count += static_cast<std::size_t>(__builtin_popcountll(one[word] & other[word]));
    }
    return count;
}

}  // namespace

}  // namespace nearstep::codec
