// Chooses the codecs of a step and who encodes. Used by Resources and Step.
#include "engine/route/gradient_route.hpp"

#include "base/error.hpp"
#include "plan/formulas.hpp"
#include "shard/partition.hpp"

#include <algorithm>
#include <utility>

namespace nearstep::engine {

namespace {

double per_parameter(std::size_t payload_bytes) {
    return static_cast<double>(payload_bytes) / static_cast<double>(shard::kTileElems);
}

// Whether `lists` payloads of a tile are larger than their dense sum, by the planner's rule.
bool does_dense_pay(const config::EngineSettings& settings, Dtype dtype, int lists) {
    const plan::Codec codec = settings.compress.codec;
    const auto bytes = [&](plan::Handover handover) {
        return plan::handover_bytes(handover, codec, lists, settings.compress.keep,
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
      computing_(config::computing_ranks(settings, static_cast<int>(nodes.group_of.size()))),
      groups_(mpi::groups_of(nodes, settings.placement.gradients.ranks(), computing_)),
      gradients_(groups_.groups_below(computing_)),
      warmup_steps_(settings.compress.warmup_steps),
      is_densified_(settings.exchange.densify == config::Densify::always ||
                    (settings.exchange.densify == config::Densify::automatic &&
                     does_dense_pay(settings, dtype, gradients_))) {
    if (groups_.most_beside() > nodes.most_beside()) {
        joint_groups_ = std::exchange(groups_, nodes);
    }
}

int GradientRoute::first_payloads() const {
    return joint_groups_.groups() > 0 ? groups_.groups_below(computing_) / gradients_ : gradients_;
}

RouteCodecs GradientRoute::of_step(std::int64_t steps_done) const {
    const codec::Codec* of_run = steps_done < warmup_steps_ ? dense_.get() : codec_.get();
    RouteCodecs codecs{.sent = of_run};
    if (is_densified_) {
        codecs.sum_codec = dense_.get();
    }
    if (joint_groups_.groups() > 0) {
        codecs.of_nodes = dense_.get();
        if (is_densified_ && gradients_ == 1) {  // no payload is smaller than the dense sum
            codecs.sent = dense_.get();
        }
    }
    return codecs;
}

std::size_t GradientRoute::most_sent_bytes() const {
    const bool are_dense = warmup_steps_ > 0 || joint_groups_.groups() > 0;
    return std::max(codec_->payload_bytes(), are_dense ? dense_->payload_bytes() : 0);
}

std::size_t GradientRoute::most_handover_bytes() const {
    return std::max(of_step(0).to_devices().payload_bytes(),
                    of_step(warmup_steps_).to_devices().payload_bytes());
}

double GradientRoute::payload_bytes_per_parameter() const {
    return per_parameter(codec_->payload_bytes());
}

double GradientRoute::handover_bytes_per_parameter() const {
    return per_parameter((is_densified_ ? dense_ : codec_)->payload_bytes()) * sources();
}

std::string GradientRoute::describe(const config::EngineSettings& settings) const {
    const std::string placed =
        text("placement.gradients = ", settings.placement.gradients.written());
    std::string words;
    if (joint_groups_.groups() > 0) {
        words = text("the nodes of ", settings.placement.gradients.ranks(),
                     " ranks send each other dense sums of gradients before these are encoded (",
                     placed, ")");
    }
    if (is_densified_) {
        words += text(words.empty() ? "" : "; ", "owners add up the ", gradients_,
                      gradients_ == 1 ? " payload" : " payloads",
                      " of a tile and hand the dense sum to their devices (exchange.densify = ",
                      config::name_of(settings.exchange.densify), ", ", placed, ")");
    }
    return words;
}

}  // namespace nearstep::engine
