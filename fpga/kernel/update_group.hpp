// The lanes: they take stored state and gradients, and return new state and parameters.
// C++14, no exceptions, no containers.
#pragma once

#include "fpga/kernel/arithmetic.hpp"
#include "fpga/kernel/job.hpp"
#include "fpga/kernel/read_memory.hpp"
#include "fpga/kernel/stream.hpp"
#include "fpga/kernel/sum_gradient.hpp"

#include <cmath>
#include <cstdint>

namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace fpga {

// Bits of one parameter's state in its format.
struct StoredWords {
    std::uint32_t master;
    std::uint32_t moment1;
    std::uint32_t moment2;
};

// One parameter in fp32.
struct Wide {
    float master;
    float moment1;
    float moment2;
};

inline float widen_master(StateFormat format, std::uint32_t bits) {
    return format == StateFormat::compact ? from_bf16(static_cast<std::uint16_t>(bits))
                                          : float_of(bits);
}

inline Wide widen(StateFormat format, const StoredWords& stored, const Scales& scales) {
    const float master = widen_master(format, stored.master);
    switch (format) {
        case StateFormat::fp32:
            return {master, float_of(stored.moment1), float_of(stored.moment2)};
        case StateFormat::bf16:
            return {master, from_bf16(static_cast<std::uint16_t>(stored.moment1)),
                    from_bf16(static_cast<std::uint16_t>(stored.moment2))};
        default:
            return {
                master,
                decode_moment1(static_cast<std::int8_t>(static_cast<std::uint8_t>(stored.moment1)),
                               scales.moment1),
                decode_moment2(static_cast<std::uint8_t>(stored.moment2), scales.moment2)};
    }
}

// Moments stored as codes stay fp32 here, the second as its square root.
inline StoredWords narrow(StateFormat format, const Wide& wide, std::uint32_t random) {
    const std::uint32_t high = random >> 16U;
    switch (format) {
        case StateFormat::fp32:
            return {bits_of(wide.master), bits_of(wide.moment1), bits_of(wide.moment2)};
        case StateFormat::bf16:
            return {bits_of(wide.master), round_to_bf16(wide.moment1, random & 0xFFFFU),
                    round_to_bf16(wide.moment2, high)};
        case StateFormat::q8:
            return {bits_of(wide.master), bits_of(wide.moment1), bits_of(std::sqrt(wide.moment2))};
        default:
            return {round_to_bf16(wide.master, high), bits_of(wide.moment1),
                    bits_of(std::sqrt(wide.moment2))};
    }
}

// A stored master in the parameters' format. bf16 to bf16 keeps all bits, even of NaN.
inline std::uint32_t parameter_of(StateFormat format, Dtype dtype, std::uint32_t master) {
    if (format == StateFormat::compact && dtype == Dtype::bf16) {
        return master;
    }
    const float wide = widen_master(format, master);
    return dtype == Dtype::fp32   ? bits_of(wide)
           : dtype == Dtype::bf16 ? to_bf16(wide)
                                  : to_fp16(wide);
}

// Splits words from `in` into groups: returns group `index` of an array with `bits` bits per
// element.
template <int kLanes, typename In>
inline LaneGroup<kLanes> take(Word& word, std::uint32_t index, std::uint32_t bits, In& in) {
    const std::uint32_t part = index % (8 * kWordBytes / bits / kLanes);
    if (part == 0) {
        word = in.read();
    }
    return slice<kLanes>(word, part, bits);
}

// Packs groups into words; each full word goes to `out`.
template <int kLanes>
inline void put(Word& word, std::uint32_t index, std::uint32_t bits, const LaneGroup<kLanes>& group,
                KernelStream<Word>& out) {
    const std::uint32_t parts = 8 * kWordBytes / bits / kLanes;
    const std::uint32_t part = index % parts;
    if (part == 0) {
        word = zero_word();
    }
    insert<kLanes>(group, part, bits, word);
    if (part == parts - 1) {
        out.write(word);
    }
}

// Data of one cycle.
template <int kLanes>
struct Cycle {
    LaneGroup<kLanes> master;
    LaneGroup<kLanes> moment1;
    LaneGroup<kLanes> moment2;
    LaneGroup<kLanes> fresh;
    LaneGroup<kLanes> old;
};

// The scalars for the elements of a cycle, all in one run.
struct RunScalars {
    UpdateScalars scalars;
    bool is_skipped;
    std::uint32_t end;  // end of the run, as an element of its tile
};

// Restores the bits of values that the update must not change. Codes are excluded: their whole
// block is encoded again.
inline void keep_unused(const Job& job, const RunScalars& run, const StoredWords& stored,
                        StoredWords& fresh) {
    if (run.is_skipped) {
        fresh.master = stored.master;
    }
    if (!has_codes(job) && (run.is_skipped || !uses_moment1(run.scalars.optimizer))) {
        fresh.moment1 = stored.moment1;
    }
    if (!has_codes(job) && (run.is_skipped || !uses_moment2(run.scalars.optimizer))) {
        fresh.moment2 = stored.moment2;
    }
}

// `cycle` holds the stored state of the elements from `first` of their tile on. On return it holds
// the new state and the parameters.
template <int kLanes>
inline void update_cycle(const Job& job, const RunScalars& run, const LaneGroup<kLanes>& gradient,
                         const Scales& scales, TileKey key, std::uint32_t first,
                         Cycle<kLanes>& cycle) {
    for (int lane = 0; lane < kLanes; ++lane) {
#pragma HLS unroll
        const StoredWords stored = {cycle.master.of[lane], cycle.moment1.of[lane],
                                    cycle.moment2.of[lane]};
        Wide wide = widen(job.format, stored, scales);
        if (!run.is_skipped) {
            update_lane(run.scalars.optimizer, run.scalars, float_of(gradient.of[lane]),
                        wide.master, wide.moment1, wide.moment2);
        }
        const std::uint32_t random = rounding_bits(key, first + static_cast<std::uint32_t>(lane));
        StoredWords fresh = narrow(job.format, wide, random);
        keep_unused(job, run, stored, fresh);
        cycle.old.of[lane] = parameter_of(job.format, job.parameter_dtype, stored.master);
        cycle.fresh.of[lane] = parameter_of(job.format, job.parameter_dtype, fresh.master);
        cycle.master.of[lane] = fresh.master;
        cycle.moment1.of[lane] = fresh.moment1;
        cycle.moment2.of[lane] = fresh.moment2;
    }
}

// Words that are partly read or partly written.
struct OpenWords {
    Word master;
    Word moment1;
    Word moment2;
    Word gradient;
    Word new_master;
    Word fresh;
    Word old;
    Scales scales;
};

// The process of the lanes. Unused moments have no words, and only formats with codes have scales.
// Moments leave as groups, because codes wait for their block's scale. For `runs` see
// read_groups(). `fresh` receives the new parameters and `old` the old ones, for deltas. The
// gradient is passed on to `measured`.
template <int kLanes>
inline void update_tiles(const Job& job, TileSpan span, KernelStream<Word>& master,
                         KernelStream<Word>& moment1, KernelStream<Word>& moment2,
                         KernelStream<Scales>& scales, KernelStream<std::uint32_t>& runs,
                         SumStream& gradient, KernelStream<Word>& new_master,
                         KernelStream<LaneGroup<kLanes>>& new_moment1,
                         KernelStream<LaneGroup<kLanes>>& new_moment2, KernelStream<Word>& fresh,
                         KernelStream<Word>& old, KernelStream<Word>& measured) {
    constexpr std::uint32_t kTileCycles = kTileElems / kLanes;
    const std::uint32_t of_master = master_bits(job);
    const std::uint32_t of_moment = moment_bits(job);
    const std::uint32_t of_parameter = parameter_bits(job);
    OpenWords open = {};
    RunScalars run = {job.scalars, false, 0};
    for (std::uint32_t step = 0; step < (span.end - span.begin) * kTileCycles; ++step) {
#pragma HLS pipeline II = 1
        const std::uint32_t index = step % kTileCycles;
        const std::uint32_t tile = span.begin + step / kTileCycles;
        const TileKey key = tile_key(job.scalars.random_key, job.first_tile + tile);
        if (has_codes(job) && index % (kBlockElems / kLanes) == 0) {
            open.scales = scales.read();
        }
        // The runs of a tile end with it, so each tile starts a new run.
        if (job.groups.runs > 0 && (index == 0 || index * kLanes == run.end)) {
            const std::uint32_t next = runs.read();
            run.end = end_of_run(next) * kRunElems;
            run.scalars = job.groups.scalars[group_of_run(next)];
            run.is_skipped = job.groups.is_skipped[group_of_run(next)];
        }
        Cycle<kLanes> cycle = {};
        cycle.master = take<kLanes>(open.master, index, of_master, master);
        if (uses_moment1(job)) {
            cycle.moment1 = take<kLanes>(open.moment1, index, of_moment, moment1);
        }
        if (uses_moment2(job)) {
            cycle.moment2 = take<kLanes>(open.moment2, index, of_moment, moment2);
        }
        const LaneGroup<kLanes> gradients = take<kLanes>(open.gradient, index, 32, gradient);
        if (index % (kWordUnits / kLanes) == 0) {
            measured.write(open.gradient);
        }
        update_cycle<kLanes>(job, run, gradients, open.scales, key, index * kLanes, cycle);
        put<kLanes>(open.new_master, index, of_master, cycle.master, new_master);
        put<kLanes>(open.fresh, index, of_parameter, cycle.fresh, fresh);
        if (job.delivery == ParameterDelivery::deltas) {
            put<kLanes>(open.old, index, of_parameter, cycle.old, old);
        }
        if (uses_moment1(job)) {
            new_moment1.write(cycle.moment1);
        }
        if (uses_moment2(job)) {
            new_moment2.write(cycle.moment2);
        }
    }
}

}  // namespace fpga
}  // namespace nearstep
