// A training step: forward, backward, and the update, which goes on under the next forward.
#include "base/error.hpp"
#include "base/random.hpp"
#include "base/stop_request.hpp"
#include "train/devices.hpp"
#include "train/trainer.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace nearstep::train {

namespace {

using trace::Counter;
using trace::Lane;

trace::Subject of_block(int block) {
    return {.kind = "block", .number = static_cast<std::size_t>(block)};
}

// Of random numbers: what the rounding of gradients draws from.
constexpr std::uint64_t kGradientStream = 0x6772616469656E74U;

class Stopwatch {
public:
    // Seconds since construction or the last call.
    double lap() {
        const auto now = std::chrono::steady_clock::now();
        return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
    }

private:
    std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// What parameters that travel between ranks are counted as.
constexpr std::array kParameterCounters = {Counter::network_parameters, Counter::node_parameters};

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

std::vector<model::MicroBatch> Trainer::draw_batches() {
    const int context = run_.model.context;
    data::draw_rows(corpus_.train, run_.train.seed, steps_done_, first_row_, rows_, context,
                    tokens_, targets_);
    std::vector<model::MicroBatch> batches;
    for (int row = 0; row < rows_; row += run_.train.micro_batch) {
        const int rows = std::min(run_.train.micro_batch, rows_ - row);
        const auto begin = static_cast<std::size_t>(row) * static_cast<std::size_t>(context);
        const auto count = static_cast<std::size_t>(rows) * static_cast<std::size_t>(context);
        batches.push_back({rows, context, std::span(tokens_).subspan(begin, count),
                           std::span(targets_).subspan(begin, count)});
    }
    return batches;
}

void Trainer::hold_parameters_of(int block, int next, int end) {
    const auto reads = [this](int first, int last) {
        std::vector<offload::ElementRange> ranges;
        for (int of = first; of < last; ++of) {
            for (const model::Elements elements : network_->reads(of)) {
                ranges.push_back({elements.begin, elements.end});
            }
        }
        return ranges;
    };
    window_->hold(reads(block, block + 1), reads(next, end));
}

// On return the parameters that the block reads are here and final: those of the last update, or
// of the start. Blocks `next` to `end` follow in the pass: where parameters are spread over all
// ranks, what they read, too, stays if it is here.
void Trainer::bring_parameters_of(int block, int next, int end) {
    // An update that began in backward is this step's own: it brings nothing yet.
    const bool is_updating = under_way_ && pipeline_->is_updating();
    if (!window_ && !is_updating) {
        return;
    }
    const trace::Span span(timeline_, Lane::exchange, "parameters", of_block(block));
    Stopwatch watch;
    if (window_) {
        const trace::TrafficSnapshot before = traffic_.snapshot();
        hold_parameters_of(block, next, end);
        const trace::TrafficSnapshot moved = traffic_.snapshot() - before;
        for (const Counter counter : kParameterCounters) {
            auto& brought = brought_.bytes.at(static_cast<std::size_t>(counter));
            brought += under_way_ ? moved[counter] : 0;
        }
    } else {
        pipeline_->advance_update(block_tiles_end_[static_cast<std::size_t>(block)]);
        pipeline_->poll_update();
    }
    if (is_updating) {
        under_way_->waited += watch.lap();
    }
}

// Outside of steps, where ranks pass the blocks unequally often.
void Trainer::hold_all_parameters() {
    if (window_) {
        const offload::ElementRange all{0, geometry_.elems};
        window_->hold({&all, 1}, {});
    }
}

void Trainer::drop_parameters() {
    if (window_) {
        window_->drop_all();
    }
}

double Trainer::forward_pass() {
    const int blocks = static_cast<int>(geometry_.blocks.size());
    int fetched = 0;
    for (int block = 0; block < blocks; ++block) {
        gpu_traffic_->bring_parameters(block);
        bring_parameters_of(block, block + 1, blocks);
        // What is final starts its way to a GPU ahead of its visit.
        const bool are_all_final = !window_ && !(under_way_ && pipeline_->is_updating());
        const int final_end = are_all_final ? blocks : window_ ? 0 : block + 1;
        for (; fetched < final_end; ++fetched) {
            network_->fetch(fetched);
        }
        const trace::Span span(timeline_, Lane::compute, "forward", of_block(block));
        network_->forward(block);
    }
    drop_parameters();
    gpu_traffic_->finish_pass();
    return network_->loss();
}

void Trainer::backward_pass() {
    const int blocks = static_cast<int>(geometry_.blocks.size());
    for (int block = blocks - 1; block >= 0; --block) {
        gpu_traffic_->bring_parameters(block);
        if (block < blocks - 1) {  // the last one's backward was part of its forward
            bring_parameters_of(block, 0, block);
        }
        {
            const trace::Span span(timeline_, Lane::compute, "backward", of_block(block));
            const std::span<float> gradient =
                pipeline_->gradient_space(static_cast<std::size_t>(block));
            network_->backward(
                block, gradient,
                pipeline_->has_gpu() ? model::GradientPlace::gpu : model::GradientPlace::host);
            harm_gradient(gradient);
        }
        gpu_traffic_->take_gradients(block);
        {
            const trace::Span span(timeline_, Lane::exchange, "gradient", of_block(block));
            pipeline_->put_gradient(static_cast<std::size_t>(block));
        }
        faults_.pass(FaultPhase::after_scatter);
    }
    drop_parameters();
    gpu_traffic_->finish_pass();
}

offload::GradientFacts Trainer::finish_gradients() {
    const trace::Span span(timeline_, Lane::exchange, "norm");
    return pipeline_->finish_gradients();
}

// For tests.
void Trainer::harm_gradient(std::span<float> gradient) {
    if (faults_.is_armed() && faults_.arrive(FaultPhase::gradient) != FaultAction::none) {
        expects(!pipeline_->has_gpu(), "gradients that are harmed lie on the host");
        gradient.front() = std::numeric_limits<float>::infinity();
    }
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
        update_scalars(run_.train, report.learning_rate, pipeline_->generation() + 1, scale),
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
