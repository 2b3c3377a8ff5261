// Computes digests of new parameters and, for deltas, bitmaps against the old ones
// (docs/formats/parameter-payload.md).
// C++14, no exceptions, no containers.
#pragma once

#include "fpga/kernel/job.hpp"
#include "fpga/kernel/stream.hpp"
#include "fpga/kernel/xxh3.hpp"

#include <cstdint>

namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace fpga {

// Passes `fresh` on to `plain`, or to `compared` if deltas are sent.
inline void digest_parameters(const Job& job, TileSpan span, KernelStream<Word>& fresh,
                              KernelStream<Word>& plain, KernelStream<Word>& compared,
                              KernelStream<std::uint64_t>& reported,
                              KernelStream<std::uint64_t>& sent) {
    const std::uint32_t words = tile_words(parameter_bits(job));
    const bool has_deltas = job.delivery == ParameterDelivery::deltas;
    for (std::uint32_t tile = span.begin; tile < span.end; ++tile) {
        Xxh3 hash(words);
        for (std::uint64_t block = 0; block < hash.blocks(); ++block) {
            for (std::uint32_t i = 0; i < kXxhBlockStripes; ++i) {
#pragma HLS pipeline II = 1
                const Word word = fresh.read();
                hash.add(word, block, i);
                if (has_deltas) {
                    compared.write(word);
                } else {
                    plain.write(word);
                }
            }
            hash.end(block);
        }
        const std::uint64_t digest = hash.digest();
        reported.write(digest);
        if (has_deltas) {
            sent.write(digest);
        }
    }
}

// Changes of 32 parameters. Bit i is set in `plus` if parameter i grew by 1, in `minus` if it
// shrank by 1, in both if it changed otherwise.
struct Changes {
    std::uint32_t plus;
    std::uint32_t minus;
};

inline Changes changes_of(const Word& old, const Word& fresh) {
    Changes changes = {0, 0};
    for (std::uint32_t i = 0; i < kWordHalves; ++i) {
#pragma HLS unroll
        const std::uint32_t difference = (half_of(fresh, i) - half_of(old, i)) & 0xFFFFU;
        changes.plus |= (difference != 0 && difference != 0xFFFFU ? 1U : 0U) << i;
        changes.minus |= (difference > 1 ? 1U : 0U) << i;
    }
    return changes;
}

inline std::uint32_t count_bits(std::uint64_t bits) {
    bits -= (bits >> 1U) & 0x5555555555555555U;
    bits = (bits & 0x3333333333333333U) + ((bits >> 2U) & 0x3333333333333333U);
    bits = (bits + (bits >> 4U)) & 0x0F0F0F0F0F0F0F0FU;
    return static_cast<std::uint32_t>((bits * 0x0101010101010101U) >> 56U);
}

using FreshStream = KernelStream<Word, kFreshDepth>;
using BitmapStream = KernelStream<std::uint64_t, kBitmapDepth>;

// Passes new parameters on after their bitmaps. The census follows at the end of the tile.
inline void compare_parameters(const Job& job, TileSpan span, KernelStream<Word>& old,
                               KernelStream<Word>& compared, FreshStream& fresh, BitmapStream& plus,
                               BitmapStream& minus, KernelStream<DeltaCensus>& censuses) {
    if (job.delivery != ParameterDelivery::deltas) {
        return;
    }
    for (std::uint32_t tile = span.begin; tile < span.end; ++tile) {
        DeltaCensus census = {0, 0};
        Changes first = {0, 0};
        for (std::uint32_t i = 0; i < kTileWordsOfHalves; ++i) {
#pragma HLS pipeline II = 1
            const Word word = compared.read();
            const Changes changes = changes_of(old.read(), word);
            census.changed += count_bits(changes.plus | changes.minus);
            census.escaped += count_bits(changes.plus & changes.minus);
            if (i % 2 == 0) {
                first = changes;
            } else {
                plus.write(first.plus | (static_cast<std::uint64_t>(changes.plus) << 32U));
                minus.write(first.minus | (static_cast<std::uint64_t>(changes.minus) << 32U));
            }
            fresh.write(word);
        }
        censuses.write(census);
    }
}

}  // namespace fpga
}  // namespace nearstep
