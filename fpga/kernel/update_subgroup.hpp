// The updater's processes and the streams between them, for any number of lanes.
// C++14, no exceptions, no containers.
#pragma once

#include "fpga/kernel/compare_parameters.hpp"
#include "fpga/kernel/decode_gradient.hpp"
#include "fpga/kernel/encode_delta.hpp"
#include "fpga/kernel/encode_moments.hpp"
#include "fpga/kernel/job.hpp"
#include "fpga/kernel/read_memory.hpp"
#include "fpga/kernel/stream.hpp"
#include "fpga/kernel/sum_gradient.hpp"
#include "fpga/kernel/update_group.hpp"
#include "fpga/kernel/write_memory.hpp"
#include "fpga/kernel/write_parameters.hpp"

#include <cstdint>

namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace fpga {

// read -> decode, sum -> lanes -> encode -> write. All processes run at once on different parts of
// the tiles, and values reach memory only when complete. `open`, `front` and `next_word`, `sums`
// and `cursor` persist between spans; each belongs to one process. A region of processes must be
// one function.
template <int kLanes>
// NOLINTNEXTLINE(readability-function-size)
inline void update_span(const Job& job, TileSpan span, const Word* master_in, Word* master_out,
                        const Word* moment1_in, Word* moment1_out, const Word* moment2_in,
                        Word* moment2_out, const Word* scales_in, Word* scales_out,
                        const Word* payload_heads, const Word* payload_tails, const Word* groups,
                        Word* parameters, Word* report, OpenWord& open, Word* front,
                        std::uint32_t& next_word, ReportSums& sums, RunCursor& cursor) {
#pragma HLS dataflow
    KernelStream<Word> masters;
    KernelStream<Word> moments1;
    KernelStream<Word> moments2;
    KernelStream<Scales> scales;
    read_master(job, span, master_in, masters);
    read_moment<JobMoment1>(job, span, moment1_in, moments1);
    read_moment<JobMoment2>(job, span, moment2_in, moments2);
    read_scales(job, span, scales_in, scales);

    KernelStream<std::uint32_t> runs;
    read_groups(job, groups, runs, cursor);

    KernelStream<Word> indices;
    KernelStream<Word> codes;
    KernelStream<Word> values;
    KernelStream<Word> code_scales;
    KernelStream<Entry> entries;
    KernelStream<Word> decoded;
    SumStream gradients;
#pragma HLS bind_storage variable = gradients type = fifo impl = uram
    read_heads(job, span, payload_heads, indices, codes);
    read_tails(job, span, payload_tails, values, code_scales);
    pair_entries(job, span, indices, values, entries);
    decode_payloads(job, span, codes, code_scales, entries, decoded);
    sum_payloads(job, span, decoded, gradients);

    KernelStream<Word> new_masters;
    KernelStream<LaneGroup<kLanes>> wide1;
    KernelStream<LaneGroup<kLanes>> wide2;
    KernelStream<Word> fresh;
    KernelStream<Word> old;
    KernelStream<Word> measured;
    KernelStream<double> squares;
    KernelStream<double> sums_of_squares;
    KernelStream<std::uint32_t> gradients_not_finite;
    update_tiles<kLanes>(job, span, masters, moments1, moments2, scales, runs, gradients,
                         new_masters, wide1, wide2, fresh, old, measured);
    measure_gradient<kLanes>(span, measured, squares, gradients_not_finite);
    add_squares(span, squares, sums_of_squares);

    KernelStream<Word> new_moments1;
    KernelStream<Word> new_moments2;
    KernelStream<float, kScaleDepth> scales1;
    KernelStream<float, kScaleDepth> scales2;
    KernelStream<std::uint32_t> masters_not_finite;
    encode_moments<kLanes, JobMoment1>(job, span, wide1, new_moments1, scales1);
    encode_moments<kLanes, JobMoment2>(job, span, wide2, new_moments2, scales2);
    write_master(job, span, new_masters, master_out, masters_not_finite);
    write_moment<JobMoment1>(job, span, new_moments1, moment1_out);
    write_moment<JobMoment2>(job, span, new_moments2, moment2_out);
    write_scales(job, span, scales1, scales2, scales_out);

    KernelStream<Word> plain;
    KernelStream<Word> compared;
    KernelStream<std::uint64_t> digests_reported;
    KernelStream<std::uint64_t> digests_sent;
    FreshStream waiting;
#pragma HLS bind_storage variable = waiting type = fifo impl = uram
    BitmapStream plus;
    BitmapStream minus;
    KernelStream<DeltaCensus> censuses;
    KernelStream<std::uint64_t> quads;
    KernelStream<TileDelta> deltas_sent;
    KernelStream<TileDelta> deltas_reported;
    KernelStream<Word> message;
    KernelStream<MessagePart> parts;
    digest_parameters(job, span, fresh, plain, compared, digests_reported, digests_sent);
    compare_parameters(job, span, old, compared, waiting, plus, minus, censuses);
    encode_deltas(job, span, waiting, plus, minus, censuses, quads, deltas_sent, deltas_reported);
    pack_message(job, span, quads, deltas_sent, message, parts, open);
    write_parameters(job, span, plain, message, parts, digests_sent, parameters, front, next_word);
    write_report(job, span, sums_of_squares, gradients_not_finite, masters_not_finite,
                 digests_reported, deltas_reported, report, sums);
}

// True if all values of the job are valid.
inline bool is_possible(const Job& job) {
    const bool has_deltas = job.delivery == ParameterDelivery::deltas;
    const std::uint32_t words = tail_begin(job) + tail_words(job);
    return job.tiles >= 1 && job.tiles <= kMostSubgroupTiles && job.sources >= 1 &&
           job.sources <= kMostSources && job.format <= StateFormat::compact &&
           job.scalars.optimizer <= kLastOptimizer &&
           static_cast<std::uint32_t>(job.codec) < kGradientCodecs &&
           (!is_topk(job.codec) || (job.kept >= 1 && job.kept <= kTileElems)) &&
           (job.payload_stride >= words && job.payload_stride >= head_words(job)) &&
           job.delivery <= ParameterDelivery::deltas && job.parameter_dtype <= Dtype::fp16 &&
           !(has_deltas && job.parameter_dtype == Dtype::fp32);
}

template <int kLanes>
inline void update_subgroup(const Job& job, const Word* master_in, Word* master_out,
                            const Word* moment1_in, Word* moment1_out, const Word* moment2_in,
                            Word* moment2_out, const Word* scales_in, Word* scales_out,
                            const Word* payload_heads, const Word* payload_tails,
                            const Word* groups, Word* parameters, Word* report) {
    OpenWord open = begin_payloads(job);
    Word front[kFrontWords];  // NOLINT(modernize-avoid-c-arrays)
#pragma HLS aggregate variable = front
    std::uint32_t next_word = front_quads(job) / kWordQuads;
    ReportSums sums = {0, 0, 0};
    RunCursor cursor = {0, zero_word()};
    if (!is_possible(job)) {
        finish_report(UpdaterStatus::bad_argument, job.tiles, 0, sums, report);
        return;
    }
    begin_front(front);
#ifdef __SYNTHESIS__
    update_span<kLanes>(job, {0, job.tiles}, master_in, master_out, moment1_in, moment1_out,
                        moment2_in, moment2_out, scales_in, scales_out, payload_heads,
                        payload_tails, groups, parameters, report, open, front, next_word, sums,
                        cursor);
#else
    Job part = job;
    for (std::uint32_t tile = 0; tile < job.tiles; ++tile) {
        part.groups.runs = end_of_tile_runs(job, groups, cursor.next);
        update_span<kLanes>(part, {tile, tile + 1}, master_in, master_out, moment1_in, moment1_out,
                            moment2_in, moment2_out, scales_in, scales_out, payload_heads,
                            payload_tails, groups, parameters, report, open, front, next_word, sums,
                            cursor);
    }
#endif
    const std::uint64_t bytes =
        job.delivery == ParameterDelivery::deltas
            ? finish_message(job, open, front, next_word, parameters)
            : static_cast<std::uint64_t>(job.tiles) * (kTileElems / 8) * parameter_bits(job);
    finish_report(UpdaterStatus::done, job.tiles, bytes, sums, report);
}

}  // namespace fpga
}  // namespace nearstep
