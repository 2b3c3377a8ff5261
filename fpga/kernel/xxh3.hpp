// XXH3 (64 bits, seed 0) at one 64-byte word per cycle, for inputs of whole pages. It digests state
// files and delivered parameters. Follows the specification in xxHash's documentation.
// C++14, no exceptions, no containers.
#pragma once

#include "fpga/kernel/arithmetic.hpp"
#include "fpga/kernel/word_parts.hpp"

#include <cstdint>

namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace fpga {

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
