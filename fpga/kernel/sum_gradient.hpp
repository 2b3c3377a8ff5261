// The gradient of a tile: the sum of its payloads in order, and measurements of it.
// C++14, no exceptions, no containers.
#pragma once

#include "fpga/kernel/decode_gradient.hpp"
#include "fpga/kernel/job.hpp"
#include "fpga/kernel/stream.hpp"

#include <cstdint>

namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace fpga {

// Holds the sums of a tile, so that the next tile's payloads are summed while the lanes catch up.
using SumStream = KernelStream<Word, kSumDepth>;

// ((0 + d0) + d1) + ..., in fp32. A single payload streams through. With several, the partial sums
// of a tile stay on chip.
inline void sum_payloads(const Job& job, TileSpan span, KernelStream<Word>& decoded,
                         SumStream& sums) {
    static_assert(kSumWords == kTileGroups, "the sums of a tile wait");
    Word waiting[kSumWords];  // NOLINT(modernize-avoid-c-arrays)
#pragma HLS aggregate variable = waiting
#pragma HLS bind_storage variable = waiting type = ram_2p impl = uram
// A word is read one payload after it was written.
#pragma HLS dependence variable = waiting inter distance = 4096 true
    for (std::uint32_t tile = span.begin; tile < span.end; ++tile) {
        for (std::uint32_t source = 0; source < job.sources; ++source) {
            for (Word& so_far : waiting) {
#pragma HLS pipeline II = 1
                const Word term = decoded.read();
                Word sum = source == 0 ? zero_word() : so_far;
                for (std::uint32_t lane = 0; lane < kDecodeLanes; ++lane) {
#pragma HLS unroll
                    sum.of[lane] = bits_of(float_of(sum.of[lane]) + float_of(term.of[lane]));
                }
                if (source + 1 == job.sources) {
                    sums.write(sum);
                } else {
                    so_far = sum;
                }
            }
        }
    }
}

// Squares are summed in double: first the squares of elements i, i + 64, i + 128 and so on, then
// these sums in ascending order. With this many sums each addition has enough cycles to finish.
constexpr std::uint32_t kSquareSums = 64;
constexpr std::uint32_t kDoubleAddCycles = 12;
static_assert(kSquareSums / kUpdateLanes >= kDoubleAddCycles,
              "a sum of doubles is complete when its next square comes");

inline bool is_finite(std::uint32_t bits) { return (bits & 0x7F800000U) != 0x7F800000U; }

// Measures a tile at the rate of the lanes. Writes kSquareSums sums.
template <int kLanes>
inline std::uint32_t measure_tile(KernelStream<Word>& gradients, KernelStream<double>& squares) {
    // NOLINTNEXTLINE(modernize-avoid-c-arrays)
    double sums[kSquareSums] = {};
#pragma HLS array_partition variable = sums cyclic factor = 4
// Each sum takes its next square after kSquareSums / kLanes cycles.
#pragma HLS dependence variable = sums inter distance = 16 true
    std::uint32_t not_finite = 0;
    Word word = zero_word();
    for (std::uint32_t group = 0; group < kTileElems / kLanes; ++group) {
#pragma HLS pipeline II = 1
        constexpr std::uint32_t kParts = kWordUnits / kLanes;
        if (group % kParts == 0) {
            word = gradients.read();
        }
        for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
#pragma HLS unroll
            const std::uint32_t bits = word.of[group % kParts * kLanes + lane];
            const auto value = static_cast<double>(float_of(bits));
            sums[(group * kLanes + lane) % kSquareSums] += value * value;
            not_finite += is_finite(bits) ? 0U : 1U;
        }
    }
    for (const double sum : sums) {
#pragma HLS pipeline II = 1
        squares.write(sum);
    }
    return not_finite;
}

template <int kLanes>
inline void measure_gradient(TileSpan span, KernelStream<Word>& gradients,
                             KernelStream<double>& squares,
                             KernelStream<std::uint32_t>& not_finite) {
    for (std::uint32_t tile = span.begin; tile < span.end; ++tile) {
        not_finite.write(measure_tile<kLanes>(gradients, squares));
    }
}

// A separate process, so that the next tile does not wait while the sums are added one by one.
inline void add_squares(TileSpan span, KernelStream<double>& squares, KernelStream<double>& sums) {
    for (std::uint32_t tile = span.begin; tile < span.end; ++tile) {
        double sum = 0;
        for (std::uint32_t i = 0; i < kSquareSums; ++i) {
#pragma HLS pipeline II = 12
            sum += squares.read();
        }
        sums.write(sum);
    }
}

}  // namespace fpga
}  // namespace nearstep
