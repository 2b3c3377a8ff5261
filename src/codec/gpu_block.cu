// Block codes on a GPU: a thread block for each piece, eight neighbours among the threads for each
// block of 64 elements, eight elements for each thread.
#include "codec/gpu_kernels.hpp"
#include "codec/gpu_tile.cuh"
#include "memory/cuda_call.hpp"

namespace nearstep::codec {

namespace {

using fpga::BlockFormat;
using fpga::kPieceBlocks;
using fpga::kScaleElems;
using fpga::kTernaryBlocks;
using fpga::kTernaryGroups;

constexpr unsigned kThreads = 256;
constexpr unsigned kEach = kPieceOctets / kThreads;
constexpr unsigned kBlockThreads = kScaleElems / kOctet;
static_assert(kBlockThreads == 8, "sums over a block take three exchanges");

// --- Scales --------------------------------------------------------------------------------------

__device__ inline std::uint32_t largest_of_block(const float (&values)[kOctet]) {
    std::uint32_t largest = 0;
#pragma unroll
    for (const float value : values) {
        largest = max(largest, fpga::magnitude_bits(value));
    }
#pragma unroll
    for (unsigned step = kBlockThreads / 2; step > 0; step /= 2) {
        largest = max(largest, __shfl_xor_sync(kEveryLane, largest, step));
    }
    return largest;
}

// Element i plus i + n/2 of n until one is left, as the format wants it; in all of the block's
// threads. In each exchange a thread gives away one half of its terms and keeps the other. Terms
// are summed in pairs only, so it does not matter which comes first.
__device__ inline float sum_of_block(const float (&terms)[kOctet]) {
    const bool is_high = (threadIdx.x & 4U) != 0;
    const bool is_second = (threadIdx.x & 2U) != 0;
    const bool is_odd = (threadIdx.x & 1U) != 0;
    float half[4];
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
        const float kept = is_high ? terms[i + 4] : terms[i];
        const float given = is_high ? terms[i] : terms[i + 4];
        half[i] = kept + __shfl_xor_sync(kEveryLane, given, 4);
    }
    float quarter[2];
#pragma unroll
    for (unsigned i = 0; i < 2; ++i) {
        const float kept = is_second ? half[i + 2] : half[i];
        const float given = is_second ? half[i] : half[i + 2];
        quarter[i] = kept + __shfl_xor_sync(kEveryLane, given, 2);
    }
    const float kept = is_odd ? quarter[1] : quarter[0];
    const float given = is_odd ? quarter[0] : quarter[1];
    float sum = kept + __shfl_xor_sync(kEveryLane, given, 1);
    // Here thread t has the sum of the elements t modulo 8.
#pragma unroll
    for (unsigned step = kBlockThreads / 2; step > 0; step /= 2) {
        sum += __shfl_xor_sync(kEveryLane, sum, step);
    }
    return sum;
}

__device__ inline float mean_magnitude(const float (&values)[kOctet]) {
    float terms[kOctet];
#pragma unroll
    for (unsigned i = 0; i < kOctet; ++i) {
        terms[i] = fpga::magnitude(values[i]);
    }
    return sum_of_block(terms) * (1.0F / kScaleElems);
}

// One bit per element, the lowest first.
__device__ inline std::uint32_t bits_above(const float (&values)[kOctet], float threshold) {
    std::uint32_t bits = 0;
#pragma unroll
    for (unsigned i = 0; i < kOctet; ++i) {
        bits |= fpga::magnitude(values[i]) > threshold ? 1U << i : 0U;
    }
    return bits;
}

// Of the magnitudes whose bits are set in `above`; 0 where there is none.
__device__ inline float mean_above(const float (&values)[kOctet], std::uint32_t above) {
    float terms[kOctet];
#pragma unroll
    for (unsigned i = 0; i < kOctet; ++i) {
        terms[i] = ((above >> i) & 1U) != 0 ? fpga::magnitude(values[i]) : 0.0F;
    }
    unsigned count = __popc(above);
#pragma unroll
    for (unsigned step = kBlockThreads / 2; step > 0; step /= 2) {
        count += __shfl_xor_sync(kEveryLane, count, step);
    }
    return sum_of_block(terms) / static_cast<float>(max(count, 1U));
}

struct Scale {
    std::uint16_t bits;
    std::uint32_t above;  // of ternary codes: the elements that have a sign
};

template <BlockFormat kFormat>
__device__ inline Scale scale_of(const float (&values)[kOctet], bool is_stochastic) {
    if (is_stochastic || kFormat == BlockFormat::q8 || kFormat == BlockFormat::q4) {
        constexpr float kOneOverLimit = 1.0F / static_cast<float>(fpga::largest_code(kFormat));
        return {fpga::scale_of_largest(largest_of_block(values), kOneOverLimit), 0};
    }
    const float mean = mean_magnitude(values);
    if (kFormat == BlockFormat::sign) {
        return {fpga::scale_of_mean(mean), 0};
    }
    const float threshold = mean * fpga::kTernaryThreshold;
    const std::uint32_t above = bits_above(values, threshold);
    const float kept = mean_above(values, above);
    // A mean that is not finite is kept, so that the scale becomes NaN.
    const bool is_finite = fpga::magnitude_bits(threshold) < 0x7F800000U;
    return {fpga::scale_of_mean(is_finite ? kept : threshold), above};
}

// --- Codes ---------------------------------------------------------------------------------------

// q8, q4: the code; ternary: the digit, 0 to 2; sign: 1 for negative.
template <BlockFormat kFormat>
__device__ inline void code_octet(const float (&values)[kOctet], const Scale& scale,
                                  bool is_stochastic, fpga::TileKey key, std::uint32_t index,
                                  std::int32_t (&codes)[kOctet]) {
    const float per_scale = fpga::per_scale(scale.bits);
    const bool has_codes = fpga::has_block_codes(scale.bits);
#pragma unroll
    for (unsigned i = 0; i < kOctet; ++i) {
        const float dither =
            is_stochastic ? fpga::dither_of(fpga::rounding_bits(key, index + i)) : 0.0F;
        if (kFormat == BlockFormat::sign) {
            const std::uint32_t bit =
                is_stochastic ? fpga::dithered_sign_bit(values[i], 0.5F * per_scale, dither)
                              : fpga::sign_bit(values[i]);
            codes[i] = scale.bits == fpga::kNanScale ? 0 : static_cast<std::int32_t>(bit);
        } else if (kFormat == BlockFormat::ternary && !is_stochastic) {
            const auto is_above = static_cast<std::int32_t>((scale.above >> i) & 1U);
            const auto sign = static_cast<std::int32_t>(bits_of(values[i])) >> 31;  // 0 or -1
            codes[i] = has_codes ? 1 + ((is_above ^ sign) - sign) : 1;
        } else {
            constexpr std::int32_t kLimit = fpga::largest_code(kFormat);
            const std::int32_t code = fpga::code_of(values[i], per_scale, dither, kLimit);
            codes[i] = (has_codes ? code : 0) + (kFormat == BlockFormat::ternary ? 1 : 0);
        }
    }
}

template <BlockFormat kFormat>
__device__ inline float decode(std::int32_t code, std::uint16_t scale) {
    if (kFormat == BlockFormat::sign) {
        return fpga::decode_sign(static_cast<std::uint32_t>(code), scale);
    }
    return fpga::decode_code(code - (kFormat == BlockFormat::ternary ? 1 : 0), from_bf16(scale));
}

__device__ inline std::uint32_t bytes_of(const std::int32_t* codes) {
    std::uint32_t word = 0;
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
        word |= (static_cast<std::uint32_t>(codes[i]) & 0xFFU) << (8 * i);
    }
    return word;
}

// The four lowest halves of bytes, each as a byte.
__device__ inline std::uint32_t spread(std::uint32_t nibbles) {
    const std::uint32_t pairs = (nibbles | (nibbles << 8U)) & 0x00FF00FFU;
    return (pairs | (pairs << 4U)) & 0x0F0F0F0FU;
}

// `codes_of_piece`: those of the payload. `octet`: of the piece.
template <BlockFormat kFormat>
__device__ inline void store_codes(const std::int32_t (&codes)[kOctet], unsigned octet,
                                   std::byte* codes_of_piece, std::uint32_t* digits) {
    if (kFormat == BlockFormat::q8) {
        reinterpret_cast<uint2*>(codes_of_piece)[octet] =
            make_uint2(bytes_of(codes), bytes_of(codes + 4));
    } else if (kFormat == BlockFormat::q4) {
        std::uint32_t nibbles = 0;
#pragma unroll
        for (unsigned i = 0; i < kOctet; ++i) {
            nibbles |= (static_cast<std::uint32_t>(codes[i]) & 0xFU) << (4 * i);
        }
        // A byte has an element of the block's first half and one of its second.
        const std::uint32_t others = __shfl_xor_sync(kEveryLane, nibbles, kBlockThreads / 2);
        const unsigned thread = octet % kBlockThreads;
        const bool is_second = thread >= kBlockThreads / 2;
        const std::uint32_t low = is_second ? others >> 16U : nibbles & 0xFFFFU;
        const std::uint32_t high = is_second ? nibbles >> 16U : others & 0xFFFFU;
        const unsigned word = octet / kBlockThreads * kBlockThreads +
                              thread % (kBlockThreads / 2) * 2 + (is_second ? 1U : 0U);
        reinterpret_cast<std::uint32_t*>(codes_of_piece)[word] = spread(low) | (spread(high) << 4U);
    } else if (kFormat == BlockFormat::sign) {
        std::uint32_t bits = 0;
#pragma unroll
        for (unsigned i = 0; i < kOctet; ++i) {
            bits |= static_cast<std::uint32_t>(codes[i]) << i;
        }
        codes_of_piece[octet] = static_cast<std::byte>(bits);
    } else {
        digits[2 * octet] = bytes_of(codes);
        digits[2 * octet + 1] = bytes_of(codes + 4);
    }
}

// Words of a block's digits, a byte each.
constexpr unsigned kDigitWords = kScaleElems / 4;
constexpr unsigned kPackedWords = kTernaryGroups * kDigitWords;

// Horner's rule on four bytes at once: none passes 242.
__device__ inline void pack_ternary(const std::uint32_t* digits, std::byte* codes_of_piece) {
    if (threadIdx.x < kPackedWords) {
        const unsigned group = threadIdx.x / kDigitWords;
        const std::uint32_t* digit =
            digits + group * kTernaryBlocks * kDigitWords + threadIdx.x % kDigitWords;
        std::uint32_t word = 0;
#pragma unroll
        for (unsigned block = kTernaryBlocks; block-- > 0;) {
            word = word * 3 + digit[block * kDigitWords];
        }
        reinterpret_cast<std::uint32_t*>(codes_of_piece)[threadIdx.x] = word;
    }
}

static_assert(kPackedWords <= kThreads, "a thread packs one word");

// --- Kernels -------------------------------------------------------------------------------------

struct BlockEncoding {
    TileSource source;
    float* next;
    std::byte* payloads;
    double* squares;
    std::uint64_t random_key;
    std::uint64_t first_tile;
    const std::uint32_t* places;
    std::size_t payload_bytes;
    bool is_stochastic;
};

template <BlockFormat kFormat>
__global__ void __launch_bounds__(kThreads) encode(BlockEncoding e) {
    __shared__ std::uint32_t
        digits[kFormat == BlockFormat::ternary ? kTernaryGroups * kTernaryBlocks * kDigitWords : 1];
    __shared__ double sums[kThreads / kWarp];
    const unsigned piece = blockIdx.x % kTilePieces;
    const unsigned place = blockIdx.x / kTilePieces;
    const unsigned tile = e.source.tile_at(place);
    const std::size_t from = tile * shard::kTileElems + piece * fpga::kPieceElems;
    const fpga::TileKey key =
        e.is_stochastic
            ? fpga::tile_key(e.random_key, e.first_tile + (e.places ? e.places[tile] : tile))
            : fpga::TileKey{0, 0};
    std::byte* payload = e.payloads + place * e.payload_bytes;
    std::byte* codes_of_piece = payload + piece * fpga::piece_code_bytes(kFormat);
    auto* scales =
        reinterpret_cast<std::uint16_t*>(payload + kTilePieces * fpga::piece_code_bytes(kFormat)) +
        piece * kPieceBlocks;

    float values[kEach][kOctet];
    load_octets(e.source, from + threadIdx.x * kOctet, kThreads * kOctet, values);
#pragma unroll
    for (unsigned o = 0; o < kEach; ++o) {
        const unsigned octet = o * kThreads + threadIdx.x;
        const Scale scale = scale_of<kFormat>(values[o], e.is_stochastic);
        std::int32_t codes[kOctet];
        code_octet<kFormat>(values[o], scale, e.is_stochastic, key,
                            static_cast<std::uint32_t>(piece * fpga::kPieceElems + octet * kOctet),
                            codes);
        store_codes<kFormat>(codes, octet, codes_of_piece, digits);
        if (octet % kBlockThreads == 0) {
            scales[octet / kBlockThreads] = scale.bits;
        }
        if (e.next) {
            float lost[kOctet];
#pragma unroll
            for (unsigned i = 0; i < kOctet; ++i) {
                lost[i] = lost_of(values[o][i], decode<kFormat>(codes[i], scale.bits));
            }
            store_floats(lost, e.next + from + octet * kOctet);
        }
    }
    if (kFormat == BlockFormat::ternary) {
        if (threadIdx.x < kDigitWords) {  // the block behind the last: zeros
            digits[kPieceBlocks * kDigitWords + threadIdx.x] = 0x01010101U;
        }
        __syncthreads();
        pack_ternary(digits, codes_of_piece);
    }
    if (e.squares) {
        double sum = 0;
#pragma unroll
        for (unsigned o = 0; o < kEach; ++o) {
            sum += squares_of(values[o]);
        }
        sum = sum_over_block<kThreads>(sum, sums);
        if (threadIdx.x == 0) {
            e.squares[tile * kSquareParts + piece] = sum;
        }
    }
}

// Code `i` of octet `octet` of the piece: of `block`, at `at` of its elements.
template <BlockFormat kFormat>
__device__ inline std::int32_t code_at(const std::byte* codes_of_piece, unsigned octet,
                                       unsigned i) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(codes_of_piece);
    const unsigned block = octet / kBlockThreads;
    const unsigned at = octet % kBlockThreads * kOctet + i;
    if (kFormat == BlockFormat::q8) {
        return static_cast<std::int8_t>(bytes[octet * kOctet + i]);
    }
    if (kFormat == BlockFormat::sign) {
        return (bytes[octet] >> i) & 1;
    }
    if (kFormat == BlockFormat::q4) {
        const std::uint32_t both = bytes[block * kScaleElems / 2 + at % (kScaleElems / 2)];
        const std::uint32_t nibble = at < kScaleElems / 2 ? both & 0xFU : both >> 4U;
        return static_cast<std::int32_t>(nibble ^ 8U) - 8;
    }
    std::uint32_t digits = bytes[block / kTernaryBlocks * kScaleElems + at];
    for (unsigned lower = block % kTernaryBlocks; lower > 0; --lower) {
        digits = fpga::third_of(digits);
    }
    return static_cast<std::int32_t>(digits - 3 * fpga::third_of(digits));
}

template <BlockFormat kFormat>
__global__ void __launch_bounds__(kThreads)
    decode_add(const std::byte* payloads, std::size_t payload_bytes, float* sums) {
    const unsigned piece = blockIdx.x % kTilePieces;
    const std::size_t tile = blockIdx.x / kTilePieces;
    const std::byte* payload = payloads + tile * payload_bytes;
    const std::byte* codes_of_piece = payload + piece * fpga::piece_code_bytes(kFormat);
    const auto* scales = reinterpret_cast<const std::uint16_t*>(
                             payload + kTilePieces * fpga::piece_code_bytes(kFormat)) +
                         piece * kPieceBlocks;
#pragma unroll
    for (unsigned o = 0; o < kEach; ++o) {
        const unsigned octet = o * kThreads + threadIdx.x;
        float* at =
            sums + static_cast<std::size_t>(blockIdx.x) * fpga::kPieceElems + octet * kOctet;
        float sum[kOctet];
        load_floats(at, sum);
        const std::uint16_t scale = scales[octet / kBlockThreads];
#pragma unroll
        for (unsigned i = 0; i < kOctet; ++i) {
            sum[i] += decode<kFormat>(code_at<kFormat>(codes_of_piece, octet, i), scale);
        }
        store_floats(sum, at);
    }
}

template <typename Launch>
void for_format(BlockFormat format, const Launch& launch) {
    switch (format) {
        case BlockFormat::q8:
            return launch.template operator()<BlockFormat::q8>();
        case BlockFormat::q4:
            return launch.template operator()<BlockFormat::q4>();
        case BlockFormat::ternary:
            return launch.template operator()<BlockFormat::ternary>();
        case BlockFormat::sign:
            return launch.template operator()<BlockFormat::sign>();
    }
}

}  // namespace

void encode_blocks(const GpuEncoding& encoding, BlockCoding coding, std::size_t payload_bytes,
                   CUstream_st* stream) {
    const BlockEncoding arguments{.source = TileSource(encoding),
                                  .next = encoding.next_residual,
                                  .payloads = encoding.payloads,
                                  .squares = encoding.squares,
                                  .random_key = encoding.random_key,
                                  .first_tile = encoding.first_tile,
                                  .places = encoding.places,
                                  .payload_bytes = payload_bytes,
                                  .is_stochastic = coding.rounding == fpga::Rounding::stochastic};
    const auto blocks = static_cast<unsigned>(encoding.tiles * kTilePieces);
    for_format(coding.format, [&]<BlockFormat kFormat>() {
        encode<kFormat><<<blocks, kThreads, 0, stream>>>(arguments);
    });
    memory::check_launch();
}

void decode_add_blocks(const std::byte* payloads, std::size_t tiles, BlockFormat format,
                       std::size_t payload_bytes, float* sums, CUstream_st* stream) {
    const auto blocks = static_cast<unsigned>(tiles * kTilePieces);
    for_format(format, [&]<BlockFormat kFormat>() {
        decode_add<kFormat><<<blocks, kThreads, 0, stream>>>(payloads, payload_bytes, sums);
    });
    memory::check_launch();
}

}  // namespace nearstep::codec
