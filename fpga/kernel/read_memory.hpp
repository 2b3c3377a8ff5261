// The processes that read the device's memory in bursts, each from its own port.
// C++14, no exceptions, no containers.
#pragma once

#include "fpga/kernel/job.hpp"
#include "fpga/kernel/stream.hpp"

#include <cstdint>

namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace fpga {

// Reads `words` consecutive words.
inline void read_words(const Word* memory, std::uint64_t first, std::uint32_t words,
                       KernelStream<Word>& out) {
    for (std::uint32_t i = 0; i < words; ++i) {
#pragma HLS pipeline II = 1
        out.write(memory[first + i]);
    }
}

// Reads an array of the state: `tile_words` words per tile from word `first` on.
inline void read_array(const Word* memory, std::uint64_t first, std::uint32_t tile_words,
                       TileSpan span, KernelStream<Word>& out) {
    read_words(memory, first + static_cast<std::uint64_t>(span.begin) * tile_words,
               (span.end - span.begin) * tile_words, out);
}

inline void read_master(const Job& job, TileSpan span, const Word* memory,
                        KernelStream<Word>& out) {
    read_array(memory, job.state, tile_words(master_bits(job)), span, out);
}

// Moments that no group uses are neither read nor written.
template <typename Moment>
inline void read_moment(const Job& job, TileSpan span, const Word* memory,
                        KernelStream<Word>& out) {
    if (Moment::is_used(job)) {
        read_array(memory, Moment::place(job), tile_words(moment_bits(job)), span, out);
    }
}

// Loads the scalars of the table's groups. False if an optimizer number is invalid.
inline bool load_groups(const Word* table, std::uint32_t runs, Job& job) {
    job.groups.runs = runs;
    bool is_known = true;
    for (std::uint32_t group = 0; group < kMostParameterGroups && runs > 0; ++group) {
#pragma HLS pipeline II = 1
        const Word word = table[group];
        const UpdateScalars scalars = scalars_of_group(word, job.scalars.gradient_scale);
        const bool is_skipped = word.of[kSkippedUnit] != 0;
        is_known =
            is_known && word.of[kOptimizerUnit] <= static_cast<std::uint32_t>(kLastOptimizer);
        job.groups.scalars[group] = scalars;
        job.groups.is_skipped[group] = is_skipped;
        job.groups.uses_moment1 =
            job.groups.uses_moment1 || (!is_skipped && uses_moment1(scalars.optimizer));
        job.groups.uses_moment2 =
            job.groups.uses_moment2 || (!is_skipped && uses_moment2(scalars.optimizer));
    }
    return is_known;
}

// Position of the next run in the table.
struct RunCursor {
    std::uint32_t next;
    Word word;
};

// The number of the first run after the tile that begins with run `next`.
inline std::uint32_t end_of_tile_runs(const Job& job, const Word* table, std::uint32_t next) {
    bool is_last = false;
    for (; next < job.groups.runs && !is_last; ++next) {
        const std::uint32_t run = table[word_of_run(next)].of[unit_of_run(next)];
        is_last = end_of_run(run) == kTileElems / kRunElems;
    }
    return next;
}

// Reads the table's runs. The end of the loop does not depend on what it reads, so reads overlap.
inline void read_groups(const Job& job, const Word* table, KernelStream<std::uint32_t>& runs,
                        RunCursor& cursor) {
    for (; cursor.next < job.groups.runs; ++cursor.next) {
#pragma HLS pipeline II = 1
        if (unit_of_run(cursor.next) == 0) {
            cursor.word = table[word_of_run(cursor.next)];
        }
        runs.write(cursor.word.of[unit_of_run(cursor.next)]);
    }
}

// Scales of one block.
struct Scales {
    float moment1;
    float moment2;
};

// Scales are 0 for an unused moment.
inline void read_scales(const Job& job, TileSpan span, const Word* memory,
                        KernelStream<Scales>& out) {
    if (!has_codes(job)) {
        return;
    }
    for (std::uint32_t tile = span.begin; tile < span.end; ++tile) {
        // NOLINTNEXTLINE(modernize-avoid-c-arrays)
        Word scales[2][kTileScaleWords] = {};
#pragma HLS aggregate variable = scales
        const std::uint64_t at = static_cast<std::uint64_t>(tile) * kTileScaleWords;
        for (std::uint32_t i = 0; i < kTileScaleWords && uses_moment1(job); ++i) {
#pragma HLS pipeline II = 1
            scales[0][i] = memory[scales1_at(job) + at + i];
        }
        for (std::uint32_t i = 0; i < kTileScaleWords && uses_moment2(job); ++i) {
#pragma HLS pipeline II = 1
            scales[1][i] = memory[scales2_at(job) + at + i];
        }
        for (std::uint32_t block = 0; block < kTileBlocks; ++block) {
#pragma HLS pipeline II = 1
            const std::uint32_t word = block / kWordUnits;
            out.write({float_of(scales[0][word].of[block % kWordUnits]),
                       float_of(scales[1][word].of[block % kWordUnits])});
        }
    }
}

// Reads heads and tails of all payloads, by tile, then by source. The indices and values of topk
// have their own streams, because another process takes them.
inline void read_heads(const Job& job, TileSpan span, const Word* memory,
                       KernelStream<Word>& indices, KernelStream<Word>& codes) {
    for (std::uint32_t tile = span.begin; tile < span.end; ++tile) {
        for (std::uint32_t source = 0; source < job.sources; ++source) {
            const std::uint64_t at = payload_at(job, tile, source);
            if (is_topk(job.codec)) {
                read_words(memory, at, head_words(job), indices);
            } else {
                read_words(memory, at, head_words(job), codes);
            }
        }
    }
}

inline void read_tails(const Job& job, TileSpan span, const Word* memory,
                       KernelStream<Word>& values, KernelStream<Word>& scales) {
    for (std::uint32_t tile = span.begin; tile < span.end; ++tile) {
        for (std::uint32_t source = 0; source < job.sources; ++source) {
            const std::uint64_t at = payload_at(job, tile, source) + tail_begin(job);
            if (is_topk(job.codec)) {
                read_words(memory, at, tail_words(job), values);
            } else {
                read_words(memory, at, tail_words(job), scales);
            }
        }
    }
}

}  // namespace fpga
}  // namespace nearstep
