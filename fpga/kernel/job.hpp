// One launch of the updater: its scalars, and the places of its tiles' arrays.
// C++14, no exceptions, no containers.
#pragma once

#include "base/dtype.hpp"
#include "fpga/kernel/arithmetic.hpp"
#include "fpga/kernel/card_resources.hpp"
#include "fpga/kernel/group_table.hpp"
#include "fpga/kernel/updater.hpp"
#include "fpga/kernel/word_parts.hpp"

#include <cstdint>

namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace fpga {

// Groups of a launch with several parameter groups, or with a skipped one.
struct JobGroups {
    std::uint32_t runs = 0;                       // 0: one group, with the job's own scalars
    UpdateScalars scalars[kMostParameterGroups];  // NOLINT(modernize-avoid-c-arrays)
    bool is_skipped[kMostParameterGroups];        // NOLINT(modernize-avoid-c-arrays)
    bool uses_moment1 = false;                    // by any group that is not skipped
    bool uses_moment2 = false;
};

// Offsets and strides are in words.
struct Job {
    JobGroups groups;
    UpdateScalars scalars;
    StateFormat format;
    GradientCodec codec;
    ParameterDelivery delivery;
    Dtype parameter_dtype;
    std::uint64_t state;
    std::uint64_t payloads;
    std::uint64_t first_tile;  // in the parameter vector
    std::uint32_t tiles;
    std::uint32_t sources;
    std::uint32_t payload_stride;
    std::uint32_t kept;
};

// A half-open range of the subgroup's tiles. Hardware handles all tiles in one region of processes.
// Under g++ the region runs once per tile, so streams hold at most one tile.
struct TileSpan {
    std::uint32_t begin;
    std::uint32_t end;
};

// --- State ---------------------------------------------------------------------------------------

inline bool has_codes(const Job& job) {
    return job.format == StateFormat::q8 || job.format == StateFormat::compact;
}
inline std::uint32_t master_bits(const Job& job) {
    return job.format == StateFormat::compact ? 16 : 32;
}
inline std::uint32_t moment_bits(const Job& job) {
    return has_codes(job) ? 8 : job.format == StateFormat::bf16 ? 16 : 32;
}
inline std::uint32_t parameter_bits(const Job& job) {
    return job.parameter_dtype == Dtype::fp32 ? 32 : 16;
}
inline bool uses_moment1(const Job& job) {
    return job.groups.runs > 0 ? job.groups.uses_moment1 : uses_moment1(job.scalars.optimizer);
}
inline bool uses_moment2(const Job& job) {
    return job.groups.runs > 0 ? job.groups.uses_moment2 : uses_moment2(job.scalars.optimizer);
}

// Words of a tile's elements, each of `bits` bits.
inline std::uint32_t tile_words(std::uint32_t bits) { return kTileElems / 8 * bits / kWordBytes; }
// Blocks of a tile, and words for the scales of one moment.
constexpr std::uint32_t kTileBlocks = kTileElems / kBlockElems;
constexpr std::uint32_t kTileScaleWords = kTileBlocks / kWordUnits;
static_assert(kTileBlocks % kWordUnits == 0, "the scales of a tile are whole words");

// First words of the subgroup's arrays (docs/formats/state-file.md).
inline std::uint64_t moment1_at(const Job& job) {
    return job.state + static_cast<std::uint64_t>(job.tiles) * tile_words(master_bits(job));
}
inline std::uint64_t moment2_at(const Job& job) {
    return moment1_at(job) + static_cast<std::uint64_t>(job.tiles) * tile_words(moment_bits(job));
}
inline std::uint64_t scales1_at(const Job& job) {
    return moment2_at(job) + static_cast<std::uint64_t>(job.tiles) * tile_words(moment_bits(job));
}
inline std::uint64_t scales2_at(const Job& job) {
    return scales1_at(job) + static_cast<std::uint64_t>(job.tiles) * kTileScaleWords;
}

// The codes of each moment, whether it is used and where it is.
struct JobMoment1 : FirstMoment {
    static bool is_used(const Job& job) { return uses_moment1(job); }
    static std::uint64_t place(const Job& job) { return moment1_at(job); }
};
struct JobMoment2 : SecondMoment {
    static bool is_used(const Job& job) { return uses_moment2(job); }
    static std::uint64_t place(const Job& job) { return moment2_at(job); }
};

// --- Payloads ------------------------------------------------------------------------------------

// Words of a payload's head: its values, codes or indices. The last word of a topk head also holds
// values.
inline std::uint32_t head_words(const Job& job) {
    if (is_dense(job.codec)) {
        return tile_words(job.codec == GradientCodec::dense_fp32 ? 32 : 16);
    }
    if (is_topk(job.codec)) {
        return (job.kept + kWordHalves - 1) / kWordHalves;
    }
    return tile_words(job.codec == GradientCodec::q8 ? 8 : 4);
}
static_assert(piece_code_bytes(GradientCodec::q8) % kWordBytes == 0 &&
                  piece_code_bytes(GradientCodec::q4) % kWordBytes == 0,
              "the codes of a piece are whole words, so pieces and scales begin at words");

// First word of a payload's tail, which holds scales or values. A topk tail usually begins within a
// word.
inline std::uint32_t tail_begin(const Job& job) {
    return is_topk(job.codec) ? job.kept / kWordHalves : head_words(job);
}
inline std::uint32_t tail_words(const Job& job) {
    if (is_dense(job.codec)) {
        return 0;
    }
    if (is_topk(job.codec)) {
        return (2 * job.kept + kWordHalves - 1) / kWordHalves - tail_begin(job);
    }
    return kTileElems / kScaleElems / kWordHalves;
}

inline std::uint64_t payload_at(const Job& job, std::uint32_t tile, std::uint32_t source) {
    return job.payloads +
           (static_cast<std::uint64_t>(tile) * job.sources + source) * job.payload_stride;
}

}  // namespace fpga
}  // namespace nearstep
