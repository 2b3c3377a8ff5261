// Packs moments from the lanes into words of their format. Codes need the block's largest
// magnitude, so a block waits in one half of a ping-pong buffer while the previous one is encoded.
// C++14, no exceptions, no containers.
#pragma once

#include "fpga/kernel/arithmetic.hpp"
#include "fpga/kernel/job.hpp"
#include "fpga/kernel/stream.hpp"
#include "fpga/kernel/update_group.hpp"

#include <cstdint>

namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace fpga {

template <int kLanes>
inline std::uint32_t largest_of(const LaneGroup<kLanes>& group) {
    std::uint32_t largest = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
#pragma HLS unroll
        const std::uint32_t magnitude = group.of[lane] & 0x7FFFFFFFU;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

// Each cycle stores a group of one block and encodes the same group of the previous block. After
// the last block of a tile, one more block of cycles only encodes.
template <int kLanes, typename Moment>
inline void encode_tile(KernelStream<LaneGroup<kLanes>>& moments, KernelStream<Word>& codes,
                        KernelStream<float, kScaleDepth>& scales) {
    constexpr std::uint32_t kCycles = kBlockElems / kLanes;
    LaneGroup<kLanes> waiting[kPingPong][kCycles];  // NOLINT(modernize-avoid-c-arrays)
#pragma HLS aggregate variable = waiting
// A group is read one block after it was written.
#pragma HLS dependence variable = waiting inter distance = 64 true
    std::uint32_t largest = 0;
    float per_unit = 0;
    Word word = zero_word();
    for (std::uint32_t cycle = 0; cycle < (kTileBlocks + 1) * kCycles; ++cycle) {
#pragma HLS pipeline II = 1
        const std::uint32_t block = cycle / kCycles;
        const std::uint32_t at = cycle % kCycles;
        if (block > 0) {
            if (at == 0) {
                const float scale = Moment::scale_of(largest);
                per_unit = has_codes(scale) ? Moment::codes() / scale : 0.0F;
                scales.write(scale);
                largest = 0;
            }
            LaneGroup<kLanes> group = waiting[(block - 1) % kPingPong][at];
            for (int lane = 0; lane < kLanes; ++lane) {
#pragma HLS unroll
                const auto code =
                    static_cast<std::uint8_t>(Moment::encode(float_of(group.of[lane]), per_unit));
                group.of[lane] = per_unit > 0 ? code : 0U;
            }
            put<kLanes>(word, cycle - kCycles, 8, group, codes);
        }
        if (block < kTileBlocks) {
            const LaneGroup<kLanes> group = moments.read();
            const std::uint32_t of_group = largest_of<kLanes>(group);
            largest = of_group > largest ? of_group : largest;
            waiting[block % kPingPong][at] = group;
        }
    }
}

// Packs the moments of a tile in a format without codes. They need no scale and do not wait.
template <int kLanes>
inline void pack_tile(std::uint32_t bits, KernelStream<LaneGroup<kLanes>>& moments,
                      KernelStream<Word>& words) {
    Word word = zero_word();
    for (std::uint32_t index = 0; index < kTileElems / kLanes; ++index) {
#pragma HLS pipeline II = 1
        put<kLanes>(word, index, bits, moments.read(), words);
    }
}

template <int kLanes, typename Moment>
inline void encode_moments(const Job& job, TileSpan span, KernelStream<LaneGroup<kLanes>>& moments,
                           KernelStream<Word>& words, KernelStream<float, kScaleDepth>& scales) {
    for (std::uint32_t tile = span.begin; tile < span.end && Moment::is_used(job); ++tile) {
        if (has_codes(job)) {
            encode_tile<kLanes, Moment>(moments, words, scales);
        } else {
            pack_tile<kLanes>(moment_bits(job), moments, words);
        }
    }
}

}  // namespace fpga
}  // namespace nearstep
