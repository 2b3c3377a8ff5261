// Decodes payloads to fp32, one word of 16 values per cycle, without intermediate memory.
//
// C++14, no exceptions, no containers.
#pragma once

#include "fpga/kernel/arithmetic.hpp"
#include "fpga/kernel/job.hpp"
#include "fpga/kernel/stream.hpp"

#include <cstdint>

// C++14 has no nested namespace definitions.
namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace fpga {

// Words of 16 values per tile.
constexpr std::uint32_t kTileGroups = kTileElems / kDecodeLanes;

// --- Dense and block codes -----------------------------------------------------------------------

constexpr std::uint32_t kBlockGroups = kScaleElems / kDecodeLanes;
constexpr std::uint32_t kPieceGroups = kPieceElems / kDecodeLanes;
constexpr std::uint32_t kTailGroups = kWordHalves * kBlockGroups;  // served by one word of scales

inline float decode_dense(GradientCodec codec, const Word& word, std::uint32_t part,
                          std::uint32_t lane) {
    const auto half = static_cast<std::uint16_t>(half_of(word, (part * kDecodeLanes + lane) % 32));
    return codec == GradientCodec::dense_fp32   ? float_of(word.of[lane])
           : codec == GradientCodec::dense_bf16 ? from_bf16(half)
                                                : from_fp16(half);
}

// One of a byte's five ternary digits.
inline std::uint32_t digit_of(std::uint32_t byte, std::uint32_t place) {
    const std::uint32_t above = place == 0   ? byte
                                : place == 1 ? third_of(byte)
                                : place == 2 ? ninth_of(byte)
                                : place == 3 ? part_27_of(byte)
                                             : part_81_of(byte);
    // The highest digit needs no reduction: part_81_of a byte below 243 is below 3.
    return place == 4 ? above : above - 3 * third_of(above);
}

// Element `at` of a block, which is block number `slot` of its word.
inline float decode_block(GradientCodec codec, const Word& word, std::uint32_t slot,
                          std::uint32_t at, std::uint16_t scale) {
    constexpr std::uint32_t kHalf = kScaleElems / 2;
    switch (codec) {
        case GradientCodec::q8:
            return decode_code(static_cast<std::int8_t>(byte_of(word, at)), from_bf16(scale));
        case GradientCodec::q4: {
            const std::uint32_t byte = byte_of(word, slot * kHalf + at % kHalf);
            const std::uint32_t nibble = at < kHalf ? byte & 0xFU : byte >> 4U;
            return decode_code(static_cast<std::int32_t>(nibble ^ 8U) - 8, from_bf16(scale));
        }
        case GradientCodec::ternary: {
            const std::uint32_t digit = digit_of(byte_of(word, at), slot);
            return decode_code(static_cast<std::int32_t>(digit) - 1, from_bf16(scale));
        }
        default:
            return decode_sign((word.of[2 * slot + at / 32] >> (at % 32)) & 1U, scale);
    }
}

// Blocks whose codes share one word.
inline std::uint32_t blocks_in_word(GradientCodec codec) {
    return codec == GradientCodec::q8        ? 1
           : codec == GradientCodec::q4      ? 2
           : codec == GradientCodec::ternary ? static_cast<std::uint32_t>(kTernaryBlocks)
                                             : 8;
}

inline void decode_dense_payload(GradientCodec codec, Stream<Word>& heads, Stream<Word>& out) {
    const std::uint32_t parts = codec == GradientCodec::dense_fp32 ? 1 : 2;
    Word word = zero_word();
    for (std::uint32_t group = 0; group < kTileGroups; ++group) {
#pragma HLS pipeline II = 1
        if (group % parts == 0) {
            word = heads.read();
        }
        Word values;
        for (std::uint32_t lane = 0; lane < kDecodeLanes; ++lane) {
#pragma HLS unroll
            values.of[lane] = bits_of(decode_dense(codec, word, group % parts, lane));
        }
        out.write(values);
    }
}

inline void decode_block_payload(GradientCodec codec, Stream<Word>& heads, Stream<Word>& tails,
                                 Stream<Word>& out) {
    const std::uint32_t blocks = blocks_in_word(codec);
    Word codes = zero_word();
    Word scales = zero_word();
    std::uint32_t slot = 0;  // of the block within its word
    for (std::uint32_t group = 0; group < kTileGroups; ++group) {
#pragma HLS pipeline II = 1
        const std::uint32_t quarter = group % kBlockGroups;
        if (group % kTailGroups == 0) {
            scales = tails.read();
        }
        // The last word of a piece of ternary codes holds one block fewer.
        if (quarter == 0) {
            slot = slot + 1 == blocks || group % kPieceGroups == 0 ? 0 : slot + 1;
            if (slot == 0) {
                codes = heads.read();
            }
        }
        const auto scale =
            static_cast<std::uint16_t>(half_of(scales, group / kBlockGroups % kWordHalves));
        Word values;
        for (std::uint32_t lane = 0; lane < kDecodeLanes; ++lane) {
#pragma HLS unroll
            const std::uint32_t at = quarter * kDecodeLanes + lane;
            values.of[lane] = bits_of(decode_block(codec, codes, slot, at, scale));
        }
        out.write(values);
    }
}

// --- Top-k ---------------------------------------------------------------------------------------

// A kept element.
struct Entry {
    std::uint16_t index;
    std::uint16_t value;
};

// Pairs indices with values, one pair per cycle.
inline void pair_entries(const Job& job, TileSpan span, Stream<Word>& heads, Stream<Word>& tails,
                         Stream<Entry>& entries) {
    Word indices = zero_word();
    Word values = zero_word();
    const std::uint32_t first_value = job.kept % kWordHalves;
    const std::uint32_t payloads = is_topk(job.codec) ? (span.end - span.begin) * job.sources : 0;
    for (std::uint32_t payload = 0; payload < payloads; ++payload) {
        for (std::uint32_t i = 0; i < job.kept; ++i) {
#pragma HLS pipeline II = 1
            if (i % kWordHalves == 0) {
                indices = heads.read();
            }
            const std::uint32_t place = (first_value + i) % kWordHalves;
            if (place == 0 || i == 0) {
                values = tails.read();
            }
            entries.write({static_cast<std::uint16_t>(half_of(indices, i % kWordHalves)),
                           static_cast<std::uint16_t>(half_of(values, place))});
        }
    }
}

// Fills the gaps between ascending entries with zeros. Each cycle takes an entry or writes a word.
// Entries out of order are dropped, so that the streams end together for any input.
inline void merge_entries(GradientCodec codec, std::uint32_t kept, Stream<Entry>& entries,
                          Stream<Word>& out) {
    Entry next = entries.read();
    std::uint32_t left = kept;  // including `next`
    std::uint32_t group = 0;
    Word values = zero_word();
    while (group < kTileGroups || left > 0) {
#pragma HLS pipeline II = 1
        if (left > 0 && (next.index / kDecodeLanes <= group || group == kTileGroups)) {
            const float value =
                codec == GradientCodec::topk_fp16 ? from_fp16(next.value) : from_bf16(next.value);
            if (next.index / kDecodeLanes == group) {
                values.of[next.index % kDecodeLanes] = bits_of(value);
            }
            --left;
            if (left > 0) {
                next = entries.read();
            }
        } else {
            out.write(values);
            values = zero_word();
            ++group;
        }
    }
}

// --- All payloads --------------------------------------------------------------------------------

// By tile, then by source. topk uses `entries`; other codecs use `codes` and `scales`.
inline void decode_payloads(const Job& job, TileSpan span, Stream<Word>& codes,
                            Stream<Word>& scales, Stream<Entry>& entries, Stream<Word>& out) {
    for (std::uint32_t payload = 0; payload < (span.end - span.begin) * job.sources; ++payload) {
        if (is_topk(job.codec)) {
            merge_entries(job.codec, job.kept, entries, out);
        } else if (is_dense(job.codec)) {
            decode_dense_payload(job.codec, codes, out);
        } else {
            decode_block_payload(job.codec, codes, scales, out);
        }
    }
}

}  // namespace fpga
}  // namespace nearstep
