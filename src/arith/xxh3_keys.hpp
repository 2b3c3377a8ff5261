// The constants of XXH3 (64 bits, seed 0), from the specification in xxHash's documentation.
// C++14, no exceptions, no containers.
#pragma once

#include <cstdint>

namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace arith {

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

}  // namespace arith
}  // namespace nearstep
