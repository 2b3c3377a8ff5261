// Delta messages on a GPU: a thread block per tile, eight parameters per thread at a time.
//
// The position of a parameter's value or code is the number of earlier parameters that have one:
// the count before its bitmap word plus the bits below it in the word. At the end, the kernel
// computes the digest of the updated tile.
#include "arith/xxh3_keys.hpp"
#include "codec/delta_format.hpp"
#include "codec/gpu_delta_kernels.hpp"
#include "memory/cuda_call.hpp"

namespace nearstep::codec {

namespace {

using shard::kTileElems;

constexpr unsigned kThreads = 512;
constexpr unsigned kWarp = 32;
constexpr unsigned kEveryLane = 0xFFFFFFFFU;
constexpr unsigned kOctet = 8;
constexpr unsigned kOctets = kTileElems / kOctet;
constexpr unsigned kWordOctets = 64 / kOctet;
constexpr unsigned kWords = kBitmapWords;
constexpr unsigned kEachWord = kWords / kThreads;
constexpr unsigned kSums = kDigestSums;
constexpr unsigned kDigestBlocks = kDeltaTileBytes / (8 * kSums * arith::kXxhBlockStripes);
static_assert(kWords % kThreads == 0, "each thread counts as many words");
static_assert(arith::kXxhBlockStripes + kSums <= 24, "a block's words have keys");

struct Workspace {
    // `changed`: changes before each bitmap word. `escaped`: escapes before each word of codes or
    // units. Counts are at most 65,472.
    std::uint16_t changed[kWords];
    std::uint16_t escaped[kWords];
    std::uint64_t digests[kDigestBlocks][kSums];
    DeltaDigestKeys keys;
    std::uint32_t of_warps[kThreads / kWarp];
    std::uint32_t offset;  // offset of the payload, in units of 8 bytes
};

// Writes to before[w] the number of set bits in the words before w; returns the total. `bits(w)`
// returns word w. All threads call.
template <typename Bits>
__device__ inline std::uint32_t count_before(const Bits& bits, std::uint16_t* before,
                                             Workspace& s) {
    const unsigned first = threadIdx.x * kEachWord;
    std::uint32_t counts[kEachWord];
    std::uint32_t own = 0;
#pragma unroll
    for (unsigned w = 0; w < kEachWord; ++w) {
        counts[w] = static_cast<std::uint32_t>(__popcll(bits(first + w)));
        own += counts[w];
    }
    std::uint32_t up_to = own;  // sum over the warp up to and including this thread
#pragma unroll
    for (unsigned step = 1; step < kWarp; step *= 2) {
        const std::uint32_t more = __shfl_up_sync(kEveryLane, up_to, step);
        up_to += threadIdx.x % kWarp >= step ? more : 0U;
    }
    __syncthreads();
    if (threadIdx.x % kWarp == kWarp - 1) {
        s.of_warps[threadIdx.x / kWarp] = up_to;
    }
    __syncthreads();
    std::uint32_t at = up_to - own;
    std::uint32_t total = 0;
#pragma unroll
    for (unsigned warp = 0; warp < kThreads / kWarp; ++warp) {
        at += warp < threadIdx.x / kWarp ? s.of_warps[warp] : 0U;
        total += s.of_warps[warp];
    }
#pragma unroll
    for (unsigned w = 0; w < kEachWord; ++w) {
        before[first + w] = static_cast<std::uint16_t>(at);
        at += counts[w];
    }
    __syncthreads();
    return total;
}

// Counts the set bits of `word` below bit `bit`.
__device__ inline std::uint32_t count_below(std::uint64_t word, unsigned bit) {
    return static_cast<std::uint32_t>(__popcll(word & ((std::uint64_t{1} << bit) - 1)));
}

// Eight bits of `words` from bit `at` on; only the first `needed` are valid.
__device__ inline std::uint32_t bits_at(const std::uint64_t* words, std::uint32_t at,
                                        unsigned needed) {
    const unsigned bit = at % 64;
    std::uint64_t bits = words[at / 64] >> bit;
    if (bit + needed > 64) {
        bits |= words[at / 64 + 1] << (64 - bit);
    }
    return static_cast<std::uint32_t>(bits) & 0xFFU;
}

// Moves the lowest bits of `bits`, in order, to the set bits of `mask`.
__device__ inline std::uint32_t spread(std::uint32_t bits, std::uint32_t mask) {
    std::uint32_t out = 0;
#pragma unroll
    for (unsigned i = 0; i < kOctet; ++i) {
        const std::uint32_t is_set = (mask >> i) & 1U;
        out |= (bits & is_set) << i;
        bits >>= is_set;
    }
    return out;
}

// Changes eight parameters: each grows by 1, shrinks by 1 or, if both bits are set, takes the next
// of `values`.
__device__ inline void change(std::uint32_t plus, std::uint32_t minus, const std::uint16_t* values,
                              uint4* target) {
    if ((plus | minus) == 0) {
        return;
    }
    const uint4 old = *target;
    std::uint32_t words[4] = {old.x, old.y, old.z, old.w};
#pragma unroll
    for (unsigned i = 0; i < kOctet; ++i) {
        const unsigned shift = 16 * (i % 2);
        const std::uint32_t up = (plus >> i) & 1U;
        const std::uint32_t down = (minus >> i) & 1U;
        std::uint32_t fresh = (words[i / 2] >> shift) + up - down;
        if ((up & down) != 0) {
            fresh = *values++;
        }
        words[i / 2] = (words[i / 2] & (0xFFFFU << (16 - shift))) | ((fresh & 0xFFFFU) << shift);
    }
    *target = make_uint4(words[0], words[1], words[2], words[3]);
}

// These return false in all threads if the bitmaps do not match the entry's counts.
__device__ inline bool apply_bitmap(std::uint32_t changed, const std::byte* payload, uint4* target,
                                    Workspace& s) {
    const auto* mask = reinterpret_cast<const std::uint64_t*>(payload);
    const auto* values = reinterpret_cast<const std::uint16_t*>(payload + kBitmapBytes);
    if (count_before([&](unsigned w) { return mask[w]; }, s.changed, s) != changed) {
        return false;
    }
    for (unsigned octet = threadIdx.x; octet < kOctets; octet += kThreads) {
        const unsigned w = octet / kWordOctets;
        const unsigned bit = octet % kWordOctets * kOctet;
        const std::uint64_t word = mask[w];
        const auto bits = static_cast<std::uint32_t>(word >> bit) & 0xFFU;
        change(bits, bits, values + s.changed[w] + count_below(word, bit), target + octet);
    }
    return true;
}

__device__ inline bool apply_units(std::uint32_t escaped, const std::byte* payload, uint4* target,
                                   Workspace& s) {
    const auto* plus = reinterpret_cast<const std::uint64_t*>(payload);
    const std::uint64_t* minus = plus + kWords;
    const auto* values = reinterpret_cast<const std::uint16_t*>(payload + 2 * kBitmapBytes);
    if (count_before([&](unsigned w) { return plus[w] & minus[w]; }, s.escaped, s) != escaped) {
        return false;
    }
    for (unsigned octet = threadIdx.x; octet < kOctets; octet += kThreads) {
        const unsigned w = octet / kWordOctets;
        const unsigned bit = octet % kWordOctets * kOctet;
        const std::uint64_t up = plus[w];
        const std::uint64_t down = minus[w];
        change(static_cast<std::uint32_t>(up >> bit) & 0xFFU,
               static_cast<std::uint32_t>(down >> bit) & 0xFFU,
               values + s.escaped[w] + count_below(up & down, bit), target + octet);
    }
    return true;
}

__device__ inline bool apply_codes(std::uint32_t changed, std::uint32_t escaped,
                                   const std::byte* payload, uint4* target, Workspace& s) {
    const auto* mask = reinterpret_cast<const std::uint64_t*>(payload);
    const auto packed_words = static_cast<unsigned>(bitmap_words(changed));
    const std::uint64_t* plus = mask + kWords;
    const std::uint64_t* minus = plus + packed_words;
    const auto* values = reinterpret_cast<const std::uint16_t*>(minus + packed_words);
    if (count_before([&](unsigned w) { return mask[w]; }, s.changed, s) != changed) {
        return false;
    }
    const auto escapes = [&](unsigned w) -> std::uint64_t {
        if (w >= packed_words) {
            return 0;
        }
        // Ignore the bits behind the last code.
        const bool is_cut = w + 1 == packed_words && changed % 64 != 0;
        const std::uint64_t codes =
            is_cut ? (std::uint64_t{1} << (changed % 64)) - 1 : ~std::uint64_t{0};
        return plus[w] & minus[w] & codes;
    };
    if (count_before(escapes, s.escaped, s) != escaped) {
        return false;
    }
    for (unsigned octet = threadIdx.x; octet < kOctets; octet += kThreads) {
        const unsigned w = octet / kWordOctets;
        const unsigned bit = octet % kWordOctets * kOctet;
        const std::uint64_t word = mask[w];
        const auto bits = static_cast<std::uint32_t>(word >> bit) & 0xFFU;
        if (bits == 0) {
            continue;
        }
        const std::uint32_t at = s.changed[w] + count_below(word, bit);  // of the first code
        const auto codes = static_cast<unsigned>(__popc(bits));
        change(spread(bits_at(plus, at, codes), bits), spread(bits_at(minus, at, codes), bits),
               values + s.escaped[at / 64] + count_below(plus[at / 64] & minus[at / 64], at % 64),
               target + octet);
    }
    return true;
}

__device__ inline void apply_list(std::uint32_t changed, const std::byte* payload,
                                  std::uint16_t* target) {
    const auto* indices = reinterpret_cast<const std::uint16_t*>(payload);
    for (std::uint32_t i = threadIdx.x; i < changed; i += kThreads) {
        target[indices[i]] = indices[changed + i];
    }
}

__device__ inline void apply_dense(const std::byte* payload, std::uint16_t* target) {
    constexpr unsigned kQuads = kTileElems / 4;
    for (unsigned i = threadIdx.x; i < kQuads; i += kThreads) {
        reinterpret_cast<uint2*>(target)[i] = reinterpret_cast<const uint2*>(payload)[i];
    }
}

// Computes the XXH3 digest of a tile; thread 0 returns it. Within a digest block, words only add
// up, so eight threads sum each block alone. The blocks are then combined in order.
__device__ inline std::uint64_t digest_of(const std::uint16_t* tile, Workspace& s) {
    constexpr std::uint64_t kPrime0 = arith::kXxhPrime64[0];
    constexpr std::uint32_t kShortPrime0 = arith::kXxhPrime32[0];
    const unsigned sum = threadIdx.x % kSums;
    for (unsigned block = threadIdx.x / kSums; block < kDigestBlocks; block += kThreads / kSums) {
        const auto* data = reinterpret_cast<const std::uint64_t*>(tile) +
                           block * arith::kXxhBlockStripes * kSums + sum;
        const bool is_last = block + 1 == kDigestBlocks;
        std::uint64_t plain = 0;
        std::uint64_t products = 0;
#pragma unroll
        for (unsigned w = 0; w < arith::kXxhBlockStripes; ++w) {
            const std::uint64_t key = w + 1 == arith::kXxhBlockStripes && is_last
                                          ? s.keys.of_last_word[sum]
                                          : s.keys.of_words[w + sum];
            const std::uint64_t keyed = data[w * kSums] ^ key;
            plain += data[w * kSums];
            products += (keyed & 0xFFFFFFFFU) * (keyed >> 32U);
        }
        s.digests[block][sum] = products + __shfl_xor_sync(kEveryLane, plain, 1);
    }
    __syncthreads();
    if (threadIdx.x >= kWarp) {
        return 0;
    }
    constexpr std::uint64_t kStart[kSums] = {
        arith::kXxhPrime32[2], arith::kXxhPrime64[0], arith::kXxhPrime64[1], arith::kXxhPrime64[2],
        arith::kXxhPrime64[3], arith::kXxhPrime32[1], arith::kXxhPrime64[4], arith::kXxhPrime32[0]};
    std::uint64_t all = 0;
#pragma unroll
    for (unsigned i = 0; i < kSums; ++i) {
        all = sum == i ? kStart[i] : all;
    }
    const std::uint64_t end_key = s.keys.of_words[arith::kXxhBlockStripes + sum];
    for (unsigned block = 0; block + 1 < kDigestBlocks; ++block) {
        all += s.digests[block][sum];
        all = (all ^ (all >> 47U) ^ end_key) * kShortPrime0;
    }
    all += s.digests[kDigestBlocks - 1][sum];
    all ^= s.keys.of_merge[sum];
    const std::uint64_t other = __shfl_xor_sync(kEveryLane, all, 1);
    std::uint64_t hash = (all * other) ^ __umul64hi(all, other);
    hash += __shfl_xor_sync(kEveryLane, hash, 2);
    hash += __shfl_xor_sync(kEveryLane, hash, 4);
    hash += kDeltaTileBytes * kPrime0;
    hash = (hash ^ (hash >> 37U)) * 0x165667919E3779F9U;
    return hash ^ (hash >> 32U);
}

// The payload of tile `tile`: it starts where the earlier payloads end.
__device__ inline const std::byte* payload_of(const DeltaMessage& message, const DeltaEntry* table,
                                              unsigned tile, Workspace& s) {
    if (threadIdx.x == 0) {
        s.offset = static_cast<std::uint32_t>(delta_table_end(message.tiles) / kDeltaAlignment);
    }
    __syncthreads();
    std::uint32_t before = 0;
    for (unsigned i = threadIdx.x; i < tile; i += kThreads) {
        const std::size_t bytes = payload_bytes(table[i].form(), table[i].census());
        before += static_cast<std::uint32_t>((bytes + kDeltaAlignment - 1) / kDeltaAlignment);
    }
    if (before != 0) {
        atomicAdd(&s.offset, before);
    }
    __syncthreads();
    return message.bytes + std::size_t{s.offset} * kDeltaAlignment;
}

__global__ void __launch_bounds__(kThreads) apply(const __grid_constant__ DeltaMessages messages,
                                                  const __grid_constant__ DeltaDigestKeys keys) {
    __shared__ Workspace s;
    const DeltaMessage& message = messages.of[blockIdx.y];
    const unsigned tile = blockIdx.x;
    if (tile >= message.tiles) {
        return;
    }
    constexpr unsigned kKeyWords = sizeof(DeltaDigestKeys) / sizeof(std::uint64_t);
    if (threadIdx.x < kKeyWords) {
        reinterpret_cast<std::uint64_t*>(&s.keys)[threadIdx.x] =
            reinterpret_cast<const std::uint64_t*>(&keys)[threadIdx.x];
    }
    const auto* table = reinterpret_cast<const DeltaEntry*>(message.bytes + sizeof(DeltaHeader));
    const DeltaEntry entry = table[tile];
    const std::byte* payload = payload_of(message, table, tile, s);
    std::uint16_t* parameters = message.parameters + std::size_t{tile} * kTileElems;
    auto* octets = reinterpret_cast<uint4*>(parameters);
    const auto changed = static_cast<std::uint32_t>(entry.census().changed);
    bool is_right = true;
    switch (entry.form()) {
        case DeltaForm::dense:
            apply_dense(payload, parameters);
            break;
        case DeltaForm::bitmap:
            is_right = apply_bitmap(changed, payload, octets, s);
            break;
        case DeltaForm::units:
            is_right = apply_units(entry.escaped, payload, octets, s);
            break;
        case DeltaForm::codes:
            is_right = apply_codes(changed, entry.escaped, payload, octets, s);
            break;
        case DeltaForm::list:
            apply_list(changed, payload, parameters);
            break;
    }
    __syncthreads();
    const std::uint64_t digest = digest_of(parameters, s);
    if (threadIdx.x == 0 && !(is_right && digest == entry.digest)) {
        atomicMax(message.verdict, message.tiles - tile);
    }
}

}  // namespace

void apply_deltas(const DeltaMessages& messages, unsigned most_tiles, const DeltaDigestKeys& keys,
                  CUstream_st* stream) {
    apply<<<dim3(most_tiles, messages.count), kThreads, 0, stream>>>(messages, keys);
    memory::check_launch();
}

}  // namespace nearstep::codec
