// XXH3 (64 bits, seed 0) at one 64-byte word per cycle, for inputs of whole pages. It digests state
// files and delivered parameters. Follows the specification in xxHash's documentation.
// C++14, no exceptions, no containers.
#pragma once

#include "fpga/kernel/word_parts.hpp"

#include <cstdint>

namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace fpga {

// --- The constants, from the same specification --------------------------------------------------

// NOLINTNEXTLINE(modernize-avoid-c-arrays)
constexpr std::uint32_t kXxhPrime32[] = {0x9E3779B1U, 0x85EBCA77U, 0xC2B2AE3DU};
// NOLINTNEXTLINE(modernize-avoid-c-arrays)
constexpr std::uint64_t kXxhPrime64[] = {0x9E3779B185EBCA87U, 0xC2B2AE3D27D4EB4FU,
                                         0x165667B19E3779F9U, 0x85EBCA77C2B2AE63U,
                                         0x27D4EB2F165667C5U};

// The algorithm's constant "secret", in little-endian words.
constexpr std::uint32_t kXxhSecretBytes = 192;
// NOLINTNEXTLINE(modernize-avoid-c-arrays)
constexpr std::uint64_t kXxhSecret[kXxhSecretBytes / 8] = {
    0xbe4ba423396cfeb8U, 0x1cad21f72c81017cU, 0xdb979083e96dd4deU, 0x1f67b3b7a4a44072U,
    0x78e5c0cc4ee679cbU, 0x2172ffcc7dd05a82U, 0x8e2443f7744608b8U, 0x4c263a81e69035e0U,
    0xcb00c391bb52283cU, 0xa32e531b8b65d088U, 0x4ef90da297486471U, 0xd8acdea946ef1938U,
    0x3f349ce33f76faa8U, 0x1d4f0bc7c7bbdcf9U, 0x3159b4cd4be0518aU, 0x647378d9c97e9fc8U,
    0xc3ebd33483acc5eaU, 0xeb6313faffa081c5U, 0x49daf0b751dd0d17U, 0x9e68d429265516d3U,
    0xfca1477d58be162bU, 0xce31d07ad1b8f88fU, 0x280416958f3acb45U, 0x7e404bbbcafbd7afU};

// Eight bytes of the secret, starting at any byte.
inline std::uint64_t xxh_secret(std::uint32_t byte) {
#pragma HLS array_partition variable = kXxhSecret complete
    const std::uint32_t shift = 8 * (byte % 8);
    const std::uint64_t low = kXxhSecret[byte / 8] >> shift;
    return shift == 0 ? low : low | (kXxhSecret[byte / 8 + 1] << (64 - shift));
}

// The algorithm reads a stripe at a time. Each stripe's key starts 8 bytes later in the secret.
constexpr std::uint32_t kXxhStripeBytes = 64;
// Stripes in a block.
constexpr std::uint32_t kXxhBlockStripes = (kXxhSecretBytes - kXxhStripeBytes) / 8;
constexpr std::uint32_t kXxhLastKey = kXxhSecretBytes - kXxhStripeBytes - 7;  // of the last stripe
constexpr std::uint32_t kXxhMergeKey = 11;

// --- The digest ----------------------------------------------------------------------------------

inline std::uint64_t product_of(std::uint32_t one, std::uint32_t other) {
    return static_cast<std::uint64_t>(one) * other;
}

// The exclusive or of the halves of a 128-bit product.
inline std::uint64_t folded_product(std::uint64_t one, std::uint64_t other) {
    const auto one_low = static_cast<std::uint32_t>(one);
    const auto one_high = static_cast<std::uint32_t>(one >> 32U);
    const auto other_low = static_cast<std::uint32_t>(other);
    const auto other_high = static_cast<std::uint32_t>(other >> 32U);
    const std::uint64_t low = product_of(one_low, other_low);
    const std::uint64_t cross = product_of(one_high, other_low) + (low >> 32U);
    const std::uint64_t middle =
        product_of(one_low, other_high) + static_cast<std::uint32_t>(cross);
    const std::uint64_t upper = product_of(one_high, other_high) + (cross >> 32U) + (middle >> 32U);
    const std::uint64_t lower = (middle << 32U) | static_cast<std::uint32_t>(low);
    return upper ^ lower;
}

// Words come in blocks. A loop over a block takes one word per cycle, since only additions depend
// on the previous word. The end of a block takes more cycles.
class Xxh3 {
public:
    // `words` is the length of the input, a positive multiple of kXxhBlockStripes.
    explicit Xxh3(std::uint64_t words)
        : words_(words), sums_{kXxhPrime32[2], kXxhPrime64[0], kXxhPrime64[1], kXxhPrime64[2],
                               kXxhPrime64[3], kXxhPrime32[1], kXxhPrime64[4], kXxhPrime32[0]} {}

    std::uint64_t blocks() const { return words_ / kXxhBlockStripes; }

    // Adds word number `place` of block number `block`.
    void add(const Word& word, std::uint64_t block, std::uint32_t place) {
        const bool is_last = block + 1 == blocks() && place + 1 == kXxhBlockStripes;
        const std::uint32_t key = is_last ? kXxhLastKey : 8 * place;
        for (std::uint32_t i = 0; i < kSums; ++i) {
#pragma HLS unroll
            const std::uint64_t data = quad_of(word, i);
            const std::uint64_t keyed = data ^ xxh_secret(key + 8 * i);
            sums_[i ^ 1U] += data;
            sums_[i] += product_of(static_cast<std::uint32_t>(keyed),
                                   static_cast<std::uint32_t>(keyed >> 32U));
        }
    }

    // Call after each block.
    void end(std::uint64_t block) {
        for (std::uint32_t i = 0; i < kSums && block + 1 != blocks(); ++i) {
#pragma HLS unroll
            sums_[i] ^= sums_[i] >> 47U;
            sums_[i] ^= xxh_secret(kXxhSecretBytes - kWordBytes + 8 * i);
            sums_[i] *= kXxhPrime32[0];
        }
    }

    // Call after the last block.
    std::uint64_t digest() const {
        std::uint64_t hash = words_ * kWordBytes * kXxhPrime64[0];
        for (std::uint32_t i = 0; i < kSums; i += 2) {
#pragma HLS unroll
            hash += folded_product(sums_[i] ^ xxh_secret(kXxhMergeKey + 8 * i),
                                   sums_[i + 1] ^ xxh_secret(kXxhMergeKey + 8 * i + 8));
        }
        hash = (hash ^ (hash >> 37U)) * 0x165667919E3779F9U;
        return hash ^ (hash >> 32U);
    }

private:
    static constexpr std::uint32_t kSums = 8;

    std::uint64_t words_;
    std::uint64_t sums_[kSums];  // NOLINT(modernize-avoid-c-arrays)
};

}  // namespace fpga
}  // namespace nearstep
