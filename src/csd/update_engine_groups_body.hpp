// The part of every engine for runs with several parameter groups. Whole blocks of one group use
// the body for one group; only blocks that groups share take a separate path. For internal linkage
// and `flatten` see update_engine_body.hpp.
#pragma once

#include "csd/state_format.hpp"
#include "csd/update_engine_body.hpp"

#include <cstddef>
#include <cstdint>

namespace nearstep::csd {
namespace {

// The part of the run from `at`, a multiple of kBlockElems, with `count` elements.
template <typename Gradient>
inline UpdateRun part_of(const UpdateRun& run, std::size_t at, std::size_t count) {
    UpdateRun part = run;
    part.state = state_from(run.format, run.state, at);
    part.gradient = static_cast<const Gradient*>(run.gradient) + at;
    part.parameters =
        static_cast<std::byte*>(run.parameters) + at * size_bytes(run.parameter_dtype);
    part.first = run.first + static_cast<std::uint32_t>(at);
    part.count = count;
    return part;
}

// Updates elements [begin, end) of the block, all of one group. Moments stored as codes always go
// to `wide`, the second as its square root.
template <StateFormat kFormat, typename Gradient>
inline void update_elements(const UpdateScalars& scalars, bool is_skipped, const UpdateRun& block,
                            FloatBlock& wide, std::size_t begin, std::size_t end) {
    using Types = Stored<kFormat>;
    const auto* gradient = static_cast<const Gradient*>(block.gradient);
    auto* master = static_cast<typename Types::Master*>(block.state.master);
    auto* moment1 = static_cast<typename Types::Moment1*>(block.state.moment1);
    auto* moment2 = static_cast<typename Types::Moment2*>(block.state.moment2);
    for (std::size_t i = begin; i < end; ++i) {
        const std::uint32_t random =
            arith::rounding_bits(block.key, block.first + static_cast<std::uint32_t>(i));
        float weight = widen(master[i]);
        float wide1 = 0;
        float wide2 = 0;
        if constexpr (Types::kHasCodes) {
            wide1 = arith::decode_moment1(moment1[i], block.state.scale1[0]);
            wide2 = arith::decode_moment2(moment2[i], block.state.scale2[0]);
        } else {
            wide1 = widen(moment1[i]);
            wide2 = widen(moment2[i]);
        }
        if (!is_skipped) {
            arith::update_lane(scalars.optimizer, scalars, widen_gradient(gradient[i]), weight,
                               wide1, wide2);
            narrow(weight, random >> 16U, master[i]);
        }
        if constexpr (Types::kHasCodes) {
            wide.moment1[i] = wide1;
            wide.root2[i] = std::sqrt(wide2);
        } else {
            if (!is_skipped && uses_moment1(scalars.optimizer)) {
                narrow(wide1, random & 0xFFFFU, moment1[i]);
            }
            if (!is_skipped && uses_moment2(scalars.optimizer)) {
                narrow(wide2, random >> 16U, moment2[i]);
            }
        }
    }
}

// Updates a block that groups share; its first element has index `element` in the parameter vector.
// The block has one scale per moment. If one group changes a moment, the codes of all are decoded
// and encoded again, even for skipped groups and for optimizers that do not use the moment. This
// may move a value by half a step of the new scale.
template <StateFormat kFormat, typename Gradient>
inline void run_shared_block(const StepScalars& scalars, const GroupRun* group, std::size_t element,
                             const UpdateRun& block, FloatBlock& wide) {
    bool has_new1 = false;
    bool has_new2 = false;
    std::size_t begin = 0;
    for (; begin < block.count; ++group) {
        const std::size_t left = group->end - element;
        const std::size_t end = left < block.count ? left : block.count;
        const UpdateScalars& own = scalars.of_group[group->group];
        const bool is_skipped = scalars.is_skipped[group->group];
        update_elements<kFormat, Gradient>(own, is_skipped, block, wide, begin, end);
        has_new1 = has_new1 || (!is_skipped && uses_moment1(own.optimizer));
        has_new2 = has_new2 || (!is_skipped && uses_moment2(own.optimizer));
        begin = end;
    }
    if constexpr (Stored<kFormat>::kHasCodes) {
        if (has_new1) {
            block.state.scale1[0] = arith::encode_block<arith::FirstMoment>(
                wide.moment1.data(), static_cast<std::int8_t*>(block.state.moment1), block.count);
        }
        if (has_new2) {
            block.state.scale2[0] = arith::encode_block<arith::SecondMoment>(
                wide.root2.data(), static_cast<std::uint8_t*>(block.state.moment2), block.count);
        }
    }
    deliver_block<kFormat>(block, wide, 0, block.count);
}

template <typename Blocks, StateFormat kFormat, typename Gradient>
inline void run_groups_of(const StepScalars& scalars, const GroupRun* group, std::size_t element,
                          const UpdateRun& run) {
    FloatBlock wide;
    std::size_t at = 0;
    while (at < run.count) {
        while (group->end <= element + at) {
            ++group;
        }
        const std::size_t left = group->end - element;
        const std::size_t end = left < run.count ? left / kBlockElems * kBlockElems : run.count;
        if (end <= at) {
            const std::size_t rest = run.count - at;
            const auto block = part_of<Gradient>(run, at, rest < kBlockElems ? rest : kBlockElems);
            run_shared_block<kFormat, Gradient>(scalars, group, element + at, block, wide);
            at += block.count;
            continue;
        }
        const auto part = part_of<Gradient>(run, at, end - at);
        if (scalars.is_skipped[group->group]) {
            round_run(part);
        } else {
            update_run<Blocks>(scalars.of_group[group->group], part);
        }
        at = end;
    }
}

template <typename Blocks, StateFormat kFormat>
inline void run_groups(const StepScalars& scalars, const GroupRun* groups, std::size_t element,
                       const UpdateRun& run) {
    if (run.gradient_dtype == Dtype::bf16) {
        run_groups_of<Blocks, kFormat, std::uint16_t>(scalars, groups, element, run);
    } else {
        run_groups_of<Blocks, kFormat, float>(scalars, groups, element, run);
    }
}

template <typename Blocks>
[[gnu::flatten]] inline void update_groups_run(const StepScalars& scalars, const GroupRun* groups,
                                               std::size_t element, const UpdateRun& run) {
    switch (run.format) {
        case StateFormat::fp32:
            return run_groups<Blocks, StateFormat::fp32>(scalars, groups, element, run);
        case StateFormat::bf16:
            return run_groups<Blocks, StateFormat::bf16>(scalars, groups, element, run);
        case StateFormat::q8:
            return run_groups<Blocks, StateFormat::q8>(scalars, groups, element, run);
        case StateFormat::compact:
            return run_groups<Blocks, StateFormat::compact>(scalars, groups, element, run);
    }
}

}  // namespace
}  // namespace nearstep::csd
