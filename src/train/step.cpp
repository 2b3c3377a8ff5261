// A training step: forward, backward, and the update, which goes on under the next forward.
#include "base/error.hpp"
#include "base/random.hpp"
#include "base/stop_request.hpp"
#include "train/decay_groups.hpp"
#include "train/devices.hpp"
#include "train/stopwatch.hpp"
#include "train/trainer.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace nearstep::train {

namespace {

using trace::Counter;
using trace::Lane;

// Of random numbers: what the rounding of gradients draws from.
constexpr std::uint64_t kGradientStream = 0x6772616469656E74U;

}  // namespace

void Trainer::begin_gradients() {
    const bool is_warmup = steps_done_ < run_.compress.warmup_steps;
    const RouteCodecs codecs = route_.of_step(steps_done_);
    pipeline_->begin_step({.codec = codecs.sent,
                           .random_key = random_bits(run_.train.seed, kGradientStream,
                                                     static_cast<std::uint64_t>(steps_done_)),
                           .feeds_back = run_.compress.error_feedback && !is_warmup},
                          codecs.handed);
}

void Trainer::finish_step(bool is_finite) {
    const double before = loss_scale_.value();
    loss_scale_.after_step(is_finite);
    if (pipeline_->residual() != nullptr && loss_scale_.value() != before) {
        pipeline_->residual()->scale(static_cast<float>(loss_scale_.value() / before));
    }
    ++steps_done_;
}

offload::GradientFacts Trainer::finish_gradients() {
    const trace::Span span(timeline_, Lane::exchange, "norm");
    return pipeline_->finish_gradients();
}

// Whether what the update multiplies gradients by is known before the gradients are. A step of fp16
// waits: that it is skipped is how its loss scale is found.
bool Trainer::begins_in_backward() const {
    const bool is_known = run_.train.clip_norm == 0 || clipping_norm_ > 0;
    return is_known && overlaps_steps(run_.mode) && run_.model.dtype != Dtype::fp16;
}

void Trainer::restore_clipping(double norm) {
    clipping_norm_ = run_.train.clipping == "delayed" ? norm : 0;
}

// Begins the update; commits are prepared behind it.
void Trainer::begin_update(const StepReport& report) {
    if (timeline_ != nullptr) {
        timeline_->begin_update(report.step);
    }
    const double norm = clipping_norm_ > 0 ? clipping_norm_ : report.gradient_norm;
    const double scale = clip_factor(norm, run_.train.clip_norm) / loss_scale_.value();
    pipeline_->begin_update(
        step_scalars(run_.train, report.learning_rate, pipeline_->generation() + 1, scale),
        vector_.span(), [this] {
            if (run_.csd.durability == "step") {
                prepare_commit();
            }
        });
}

// A gradient that is not finite was found when devices had begun. They wrote beside the state of
// the last step, which is whole; the parameters that they put in the vector are made again from it.
// Those of others were not sent yet, nor are deltas applied.
void Trainer::undo_update() {
    pipeline_->cancel_update();
    if (delivery(run_) == csd::Delivery::parameters) {
        pipeline_->visit_subgroups(
            [this](csd::Device& device, std::size_t subgroup, shard::TileRange tiles) {
                const std::size_t elems = tiles.size() * shard::kTileElems;
                const std::span<float> masters = std::span(master_).first(elems);
                device.read_state(
                    subgroup, pipeline_->generation(),
                    {masters, std::span(moment1_).first(elems), std::span(moment2_).first(elems)});
                load_masters_into_vector(tiles, masters);
            });
    }
    world_.barrier();  // ranks of a node may share the vector
}

// What of the step is known before its update ends: from this rank's to what holds for all.
void Trainer::add_up_losses(StepReport& report) const {
    const std::array mine{report.loss, report.seconds.forward, report.seconds.backward,
                          is_stop_requested() ? 1.0 : 0.0};
    const std::vector<double> of_ranks = world_.all_gather(mine);
    report.loss = 0;
    for (std::size_t i = 0; i < of_ranks.size(); i += mine.size()) {
        report.loss += of_ranks[i];
        report.seconds.forward = std::max(report.seconds.forward, of_ranks[i + 1]);
        report.seconds.backward = std::max(report.seconds.backward, of_ranks[i + 2]);
        report.is_stop_requested = report.is_stop_requested || of_ranks[i + 3] > 0;
    }
}

// The rest: what was counted since the step before was reported, without what the next one brought.
void Trainer::add_up_traffic(StepReport& report) {
    const std::array mine{report.seconds.update, -report.seconds.hidden};
    const std::vector<double> of_ranks = world_.all_gather(mine);
    for (std::size_t i = 0; i < of_ranks.size(); i += mine.size()) {
        report.seconds.update = std::max(report.seconds.update, of_ranks[i]);
        report.seconds.hidden = std::min(report.seconds.hidden, -of_ranks[i + 1]);
    }
    const trace::TrafficSnapshot now =
        traffic_.snapshot() - std::exchange(brought_, trace::TrafficSnapshot());
    report.traffic = now - std::exchange(counted_, now);
    network_sent_bytes_ +=
        report.traffic[Counter::network_gradients] + report.traffic[Counter::network_parameters];
    world_.sum(std::span(report.traffic.bytes));
    if (delivery(run_) == csd::Delivery::deltas) {
        const codec::DeltaTally deltas = pipeline_->delta_tally();
        report.deltas = deltas - std::exchange(counted_deltas_, deltas);
        world_.sum(std::span(report.deltas.tiles));
        world_.sum(std::span(report.deltas.bytes));
    }
}

StepReport Trainer::step(const StepEnded& ended) {
    if (!under_way_) {
        counted_ = traffic_.snapshot();
        counted_deltas_ = pipeline_->delta_tally();
    }
    StepReport report;
    report.step = steps_done_ + 1;
    report.learning_rate = learning_rate(run_.train, steps_done_);
    report.loss_scale = loss_scale_.value();
    const double batch_tokens = static_cast<double>(run_.train.global_batch) * run_.model.context;
    if (timeline_ != nullptr) {
        timeline_->begin_step(report.step);
    }
    Stopwatch watch;
    const double waited = under_way_ ? under_way_->waited : 0;
    const model::NetworkTraffic moved_before = network_->traffic();
    network_->begin(draw_batches(), 1.0 / batch_tokens, loss_scale_.value());
    report.loss = forward_pass();
    report.seconds.forward = watch.lap();

    if (under_way_) {
        report.seconds.forward -= under_way_->waited - waited;
        const StepReport before = finish();
        if (ended) {
            ended(before);
        }
        commit();
        watch.lap();
    }
    begin_gradients();
    const bool is_early = begins_in_backward();
    if (is_early) {
        world_.barrier();  // no rank writes before all have committed the step before
        begin_update(report);
    }
    backward_pass();
    step_traffic_ += network_->traffic() - moved_before;
    const offload::GradientFacts facts = finish_gradients();
    faults_.pass(FaultPhase::after_gradients);
    report.seconds.backward = watch.lap();

    report.gradient_norm = facts.norm / loss_scale_.value();
    report.is_skipped = !facts.is_finite;
    if (facts.is_finite) {
        if (!is_early) {
            begin_update(report);
        }
        pipeline_->accept_update();
        restore_clipping(report.gradient_norm);
    } else if (is_early) {
        undo_update();
    }
    finish_step(facts.is_finite);
    under_way_.emplace();
    if (facts.is_finite && !overlaps_steps(run_.mode)) {
        under_way_->times = wait_for_update();
    }
    add_up_losses(report);
    under_way_->report = report;
    return report;
}

offload::UpdateTimes Trainer::wait_for_update() {
    const trace::Span span(timeline_, Lane::exchange, "parameters");
    Stopwatch watch;
    const offload::UpdateTimes times = pipeline_->finish_update();
    under_way_->waited += watch.lap();
    commit_seconds_ += times.after_s;
    return times;
}

StepReport Trainer::finish() {
    expects(under_way_.has_value(), "a step that is finished was begun");
    if (pipeline_->is_updating()) {
        under_way_->times = wait_for_update();
    }
    const StepUnderWay over = *std::exchange(under_way_, std::nullopt);
    StepReport report = over.report;
    report.seconds.update = over.times.update_s;
    report.seconds.hidden = std::max(over.times.update_s + over.times.after_s - over.waited, 0.0);
    add_up_traffic(report);
    return report;
}

void Trainer::prepare_commit() {
    faults_.pass(FaultPhase::before_commit);
    log_.prepare(pipeline_->devices());
}

void Trainer::commit() {
    expects(!pipeline_->is_updating(), "a step is finished before it is committed");
    if (run_.csd.durability != "step") {
        return;
    }
    Stopwatch watch;
    if (!log_.is_prepared()) {
        prepare_commit();
    }
    pipeline_->commit(log_, position());
    faults_.pass(FaultPhase::after_commit);
    commit_seconds_ += watch.lap();
}

}  // namespace nearstep::train
