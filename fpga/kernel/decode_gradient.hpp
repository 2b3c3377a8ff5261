// Decodes payloads to fp32, one word of 16 values per cycle, without intermediate memory.
//
// C++14, no exceptions, no containers.
#pragma once

#include "fpga/kernel/arithmetic.hpp"
#include "fpga/kernel/job.hpp"
#include "fpga/kernel/stream.hpp"

#include <cstdint>

namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace fpga {

// Words of 16 values per tile.
constexpr std::uint32_t kTileGroups = kTileElems / kDecodeLanes;

// --- Dense and block codes -----------------------------------------------------------------------

constexpr std::uint32_t kBlockGroups = kScaleElems / kDecodeLanes;
constexpr std::uint32_t kTailGroups = kWordHalves * kBlockGroups;  // served by one word of scales

inline float decode_dense(GradientCodec codec, const Word& word, std::uint32_t part,
                          std::uint32_t lane) {
    const auto half = static_cast<std::uint16_t>(half_of(word, (part * kDecodeLanes + lane) % 32));
    return codec == GradientCodec::dense_fp32   ? float_of(word.of[lane])
           : codec == GradientCodec::dense_bf16 ? from_bf16(half)
                                                : from_fp16(half);
}

// Element `at` of a block, which is block number `slot` of its word.
inline float decode_block(GradientCodec codec, const Word& word, std::uint32_t slot,
                          std::uint32_t at, float scale) {
    constexpr std::uint32_t kHalf = kScaleElems / 2;
    if (codec == GradientCodec::q8) {
        return decode_code(static_cast<std::int8_t>(byte_of(word, at)), scale);
    }
    const std::uint32_t byte = byte_of(word, slot * kHalf + at % kHalf);
    const std::uint32_t nibble = at < kHalf ? byte & 0xFU : byte >> 4U;
    return decode_code(static_cast<std::int32_t>(nibble ^ 8U) - 8, scale);
}

// Blocks whose codes share one word.
inline std::uint32_t blocks_in_word(GradientCodec codec) {
    return codec == GradientCodec::q8 ? 1 : 2;
}

inline void decode_dense_payload(GradientCodec codec, KernelStream<Word>& heads,
                                 KernelStream<Word>& out) {
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

inline void decode_block_payload(GradientCodec codec, KernelStream<Word>& heads,
                                 KernelStream<Word>& tails, KernelStream<Word>& out) {
    const std::uint32_t blocks = blocks_in_word(codec);
    Word codes = zero_word();
    Word scales = zero_word();
    for (std::uint32_t group = 0; group < kTileGroups; ++group) {
#pragma HLS pipeline II = 1
        const std::uint32_t quarter = group % kBlockGroups;
        if (group % kTailGroups == 0) {
            scales = tails.read();
        }
        const std::uint32_t slot = group / kBlockGroups % blocks;  // of the block within its word
        if (quarter == 0 && slot == 0) {
            codes = heads.read();
        }
        const float scale = from_bf16(
            static_cast<std::uint16_t>(half_of(scales, group / kBlockGroups % kWordHalves)));
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
inline void pair_entries(const Job& job, TileSpan span, KernelStream<Word>& heads,
                         KernelStream<Word>& tails, KernelStream<Entry>& entries) {
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
inline void merge_entries(GradientCodec codec, std::uint32_t kept, KernelStream<Entry>& entries,
                          KernelStream<Word>& out) {
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

// Decodes the payloads of each tile, source by source. topk uses `entries`; other codecs use
// `codes` and `scales`.
inline void decode_payloads(const Job& job, TileSpan span, KernelStream<Word>& codes,
                            KernelStream<Word>& scales, KernelStream<Entry>& entries,
                            KernelStream<Word>& out) {
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
