// The processes that write the state to the device's memory in bursts, each to its own port.
// C++14, no exceptions, no containers.
#pragma once

#include "fpga/kernel/job.hpp"
#include "fpga/kernel/stream.hpp"
#include "fpga/kernel/sum_gradient.hpp"

#include <cstdint>

namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace fpga {

inline void write_words(KernelStream<Word>& in, std::uint64_t first, std::uint32_t words,
                        Word* memory) {
    for (std::uint32_t i = 0; i < words; ++i) {
#pragma HLS pipeline II = 1
        memory[first + i] = in.read();
    }
}

inline void write_array(KernelStream<Word>& in, std::uint64_t first, std::uint32_t tile_words,
                        TileSpan span, Word* memory) {
    write_words(in, first + static_cast<std::uint64_t>(span.begin) * tile_words,
                (span.end - span.begin) * tile_words, memory);
}

// Writes the masters and counts those that are not finite, one count per tile.
inline void write_master(const Job& job, TileSpan span, KernelStream<Word>& in, Word* memory,
                         KernelStream<std::uint32_t>& not_finite) {
    const std::uint32_t words = tile_words(master_bits(job));
    const bool is_narrow = master_bits(job) == 16;
    for (std::uint32_t tile = span.begin; tile < span.end; ++tile) {
        std::uint32_t count = 0;
        for (std::uint32_t i = 0; i < words; ++i) {
#pragma HLS pipeline II = 1
            const Word word = in.read();
            for (const std::uint32_t bits : word.of) {
#pragma HLS unroll
                count += is_finite(bits) ? 0U : 1U;  // the upper one of two bf16 masters
                count += is_narrow && !is_finite(bits << 16U) ? 1U : 0U;
            }
            memory[job.state + static_cast<std::uint64_t>(tile) * words + i] = word;
        }
        not_finite.write(count);
    }
}

template <typename Moment>
inline void write_moment(const Job& job, TileSpan span, KernelStream<Word>& in, Word* memory) {
    if (Moment::is_used(job)) {
        write_array(in, Moment::place(job), tile_words(moment_bits(job)), span, memory);
    }
}

// Writes the scales of a tile.
inline void write_tile_scales(KernelStream<float, kScaleDepth>& scales, std::uint64_t first,
                              Word* memory) {
    Word word = zero_word();
    for (std::uint32_t block = 0; block < kTileBlocks; ++block) {
#pragma HLS pipeline II = 1
        word.of[block % kWordUnits] = bits_of(scales.read());
        if (block % kWordUnits == kWordUnits - 1) {
            memory[first + block / kWordUnits] = word;
        }
    }
}

inline void write_scales(const Job& job, TileSpan span, KernelStream<float, kScaleDepth>& scales1,
                         KernelStream<float, kScaleDepth>& scales2, Word* memory) {
    for (std::uint32_t tile = span.begin; tile < span.end && has_codes(job); ++tile) {
        const std::uint64_t at = static_cast<std::uint64_t>(tile) * kTileScaleWords;
        if (uses_moment1(job)) {
            write_tile_scales(scales1, scales1_at(job) + at, memory);
        }
        if (uses_moment2(job)) {
            write_tile_scales(scales2, scales2_at(job) + at, memory);
        }
    }
}

}  // namespace fpga
}  // namespace nearstep
