// The kernels without vectors, which are the reference for the others. Kernels of deltas handle one
// parameter at a time. codec_kernels.cpp chooses them.
#include "codec/codec_kernels_body.hpp"

namespace nearstep::codec {

namespace {

constexpr std::size_t kWordBits = 64;

std::uint64_t bit_of(bool is_set, std::size_t at) { return (is_set ? 1ULL : 0ULL) << at; }

arith::DeltaCensus compare(const std::uint16_t* old, const std::uint16_t* fresh,
                           std::uint64_t* plus, std::uint64_t* minus) {
    arith::DeltaCensus census{0, 0};
    for (std::size_t word = 0; word < kBitmapWords; ++word) {
        std::uint64_t up = 0;
        std::uint64_t down = 0;
        for (std::size_t bit = 0; bit < kWordBits; ++bit) {
            const std::size_t i = word * kWordBits + bit;
            const auto difference = static_cast<std::uint16_t>(fresh[i] - old[i]);
            const bool has_changed = difference != 0;
            up |= bit_of(has_changed && difference != 0xFFFFU, bit);
            down |= bit_of(has_changed && difference != 1, bit);
            census.changed += has_changed ? 1U : 0U;
            census.escaped += has_changed && difference != 1 && difference != 0xFFFFU ? 1U : 0U;
        }
        plus[word] = up;
        minus[word] = down;
    }
    return census;
}

template <typename Take>
void for_each_bit(const std::uint64_t* bits, const Take& take) {
    for (std::size_t word = 0; word < kBitmapWords; ++word) {
        for (std::uint64_t rest = bits[word]; rest != 0; rest &= rest - 1) {
            take(word * kWordBits + static_cast<std::size_t>(__builtin_ctzll(rest)));
        }
    }
}

void pick_values(const std::uint64_t* bits, const std::uint16_t* values, std::uint16_t* out) {
    for_each_bit(bits, [&](std::size_t i) { *out++ = values[i]; });
}

void pick_indices(const std::uint64_t* bits, std::uint16_t* out) {
    for_each_bit(bits, [&](std::size_t i) { *out++ = static_cast<std::uint16_t>(i); });
}

void pack(const std::uint64_t* mask, const std::uint64_t* bits, std::uint64_t* out) {
    std::uint64_t packed = 0;
    std::size_t count = 0;
    for_each_bit(mask, [&](std::size_t i) {
        packed |= ((bits[i / kWordBits] >> (i % kWordBits)) & 1U) << (count % kWordBits);
        if (++count % kWordBits == 0) {
            *out++ = packed;
            packed = 0;
        }
    });
    if (count % kWordBits != 0) {
        *out = packed;
    }
}

void unpack(const std::uint64_t* mask, const std::uint64_t* packed, std::uint64_t* bits) {
    for (std::size_t word = 0; word < kBitmapWords; ++word) {
        bits[word] = 0;
    }
    std::size_t count = 0;
    for_each_bit(mask, [&](std::size_t i) {
        bits[i / kWordBits] |= ((packed[count / kWordBits] >> (count % kWordBits)) & 1U)
                               << (i % kWordBits);
        ++count;
    });
}

std::size_t count_both(const std::uint64_t* one, const std::uint64_t* other) {
    std::size_t count = 0;
    for (std::size_t word = 0; word < kBitmapWords; ++word) {
        count += static_cast<std::size_t>(__builtin_popcountll(one[word] & other[word]));
    }
    return count;
}

void apply(const std::uint64_t* plus, const std::uint64_t* minus, const std::uint16_t* values,
           std::uint16_t* target) {
    for (std::size_t i = 0; i < kBitmapWords * kWordBits; ++i) {
        const bool is_up = ((plus[i / kWordBits] >> (i % kWordBits)) & 1U) != 0;
        const bool is_down = ((minus[i / kWordBits] >> (i % kWordBits)) & 1U) != 0;
        if (is_up && is_down) {
            target[i] = *values++;
        } else if (is_up) {
            target[i] = static_cast<std::uint16_t>(target[i] + 1);
        } else if (is_down) {
            target[i] = static_cast<std::uint16_t>(target[i] - 1);
        }
    }
}

}  // namespace

extern const Kernels scalar_kernels = {
    "scalar", narrow,  widen,       add_widened,  add,  add_squares, encode_piece, decode_add_piece,
    mark,     compare, pick_values, pick_indices, pack, unpack,      count_both,   apply};

}  // namespace nearstep::codec
