// Chooses the codecs of a step and who encodes. Used by StorageEngine.
#include "engine/route/gradient_route.hpp"

#include "base/error.hpp"
#include "plan/formulas.hpp"
#include "shard/partition.hpp"

#include <algorithm>

namespace nearstep::engine {

namespace {

double per_parameter(std::size_t payload_bytes) {
    return static_cast<double>(payload_bytes) / static_cast<double>(shard::kTileElems);
}

// Whether `lists` payloads of a tile are larger than their dense sum, by the planner's rule.
bool does_dense_pay(const config::EngineSettings& settings, Dtype dtype, int lists) {
    const plan::Codec codec = settings.compress.codec;
    const auto bytes = [&](plan::Handover handover) {
        return plan::handed_bytes(handover, codec, lists, settings.compress.keep,
                                  static_cast<double>(size_bytes(dtype)));
    };
    return bytes(plan::Handover::raw) > bytes(plan::Handover::dense);
}

}  // namespace

GradientRoute::GradientRoute(const config::EngineSettings& settings, Dtype dtype,
                             const mpi::Topology& nodes)
    : codec_(codec::make_codec({.name = config::name_of(settings.compress.codec),
                                .keep = settings.compress.keep,
                                .dtype = dtype,
                                .rounding = settings.compress.rounding})),
      dense_(codec::make_codec({.name = "dense", .dtype = dtype})),
      groups_(config::placement_of(settings).gradients == config::Sharding::replicated
                  ? mpi::each_rank_alone(static_cast<int>(nodes.group_of.size()))
                  : nodes),
      gradients_(groups_.groups_below(
          config::computing_ranks(settings, static_cast<int>(nodes.group_of.size())))),
      warmup_steps_(settings.compress.warmup_steps),
      is_summed_densely_(config::placement_of(settings).gradients == config::Sharding::global) {
    const int lists = is_summed_densely_ ? 1 : gradients_;
    is_densified_ = settings.exchange.densify == config::Densify::always ||
                    (settings.exchange.densify == config::Densify::automatic &&
                     does_dense_pay(settings, dtype, lists));
    has_sum_ = is_summed_densely_ || is_densified_;
}

RouteCodecs GradientRoute::of_step(std::int64_t steps_done) const {
    const codec::Codec* of_run = steps_done < warmup_steps_ ? dense_.get() : codec_.get();
    RouteCodecs codecs{.sent = is_summed_densely_ ? dense_.get() : of_run};
    if (has_sum_) {
        codecs.handed = is_densified_ ? dense_.get() : of_run;
    }
    return codecs;
}

std::size_t GradientRoute::most_sent_bytes() const {
    return std::max(of_step(0).sent->payload_bytes(), of_step(warmup_steps_).sent->payload_bytes());
}

std::size_t GradientRoute::most_handed_bytes() const {
    const auto bytes = [](const RouteCodecs& codecs) {
        return (codecs.handed != nullptr ? codecs.handed : codecs.sent)->payload_bytes();
    };
    return std::max(bytes(of_step(0)), bytes(of_step(warmup_steps_)));
}

double GradientRoute::payload_bytes_per_parameter() const {
    return per_parameter(codec_->payload_bytes());
}

double GradientRoute::handed_bytes_per_parameter() const {
    return per_parameter((is_densified_ ? dense_ : codec_)->payload_bytes()) * sources();
}

std::string GradientRoute::describe(const config::EngineSettings& settings) const {
    if (!has_sum_) {
        return "";
    }
    return text(
        "owners add up the ", gradients_, gradients_ == 1 ? " payload" : " payloads",
        " of a tile and hand the sum to their devices, encoded as ",
        is_densified_ ? "dense" : config::name_of(settings.compress.codec),
        " (exchange.densify = ", config::name_of(settings.exchange.densify),
        ", placement.gradients = ", config::name_of(config::placement_of(settings).gradients), ")");
}

}  // namespace nearstep::engine
