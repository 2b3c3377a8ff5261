// A training step: forward, backward, and the update, which overlaps the next forward. Called
// by run.cpp and compare.cpp.
#include "base/error.hpp"
#include "base/stop_request.hpp"
#include "base/stopwatch.hpp"
#include "train/schedule.hpp"
#include "train/trainer.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

namespace nearstep::train {

namespace {

using trace::Lane;

trace::Subject of_block(int block) {
    return {.kind = "block", .number = static_cast<std::size_t>(block)};
}

// The elements that blocks [first, last) read.
std::vector<shard::ElementRange> reads_of(const model::Network& network, int first, int last) {
    std::vector<shard::ElementRange> ranges;
    for (int block = first; block < last; ++block) {
        for (const model::Elements elements : network.reads(block)) {
            ranges.push_back({elements.begin, elements.end});
        }
    }
    return ranges;
}

}  // namespace

std::vector<model::MicroBatch> Trainer::draw_batches() {
    const int context = run_.model.context;
    data::draw_rows(corpus_.train, run_.train.seed, steps_done(), first_row_, rows_, context,
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

// `next` to `end` are the remaining blocks of the pass.
void Trainer::await_parameters(int block, int next, int end) {
    engine().await_parameters(static_cast<std::size_t>(block),
                              reads_of(*network_, block, block + 1),
                              reads_of(*network_, next, end));
}

double Trainer::forward_pass(const StepReport& report) {
    if (!network_) {
        return 0;
    }
    const double batch_tokens = static_cast<double>(run_.train.global_batch) * run_.model.context;
    network_->begin(draw_batches(), 1.0 / batch_tokens, report.loss_scale);
    const int blocks = static_cast<int>(geometry_.blocks.size());
    int fetched = 0;
    for (int block = 0; block < blocks; ++block) {
        await_parameters(block, block + 1, blocks);
        // Blocks with final parameters start their copy to a GPU before their visit.
        const auto final_end =
            static_cast<int>(engine().final_end(static_cast<std::size_t>(block)));
        for (; fetched < final_end; ++fetched) {
            network_->fetch(fetched);
        }
        const trace::Span span(timeline_, Lane::compute, "forward", of_block(block));
        network_->forward(block);
    }
    engine().end_pass();
    return network_->loss();
}

// Without a network, the others' gradients come to this rank's devices.
void Trainer::backward_pass() {
    const int blocks = static_cast<int>(geometry_.blocks.size());
    if (!network_) {
        for (int block = blocks - 1; block >= 0; --block) {
            engine().put_gradient(static_cast<std::size_t>(block));
        }
        return;
    }
    const auto place =
        engine().facts().encodes_on_gpu ? model::GradientPlace::gpu : model::GradientPlace::host;
    for (int block = blocks - 1; block >= 0; --block) {
        const auto at = static_cast<std::size_t>(block);
        if (block < blocks - 1) {
            await_parameters(block, 0, block);
        } else {  // its backward ran with its forward
            engine().await_parameters(at, {}, {});
        }
        {
            const trace::Span span(timeline_, Lane::compute, "backward", of_block(block));
            const std::span<float> space = engine().gradient_space(at);  // may wait
            Stopwatch watch;
            network_->backward(block, space, place);
            computed_s_ += watch.lap();
        }
        engine().put_gradient(at);
    }
    engine().end_pass();
}

// Fills in what is known of the step before its update ends. Combines the ranks' values.
void Trainer::add_up_losses(StepReport& report) const {
    const std::array mine{report.loss, report.seconds.forward, report.seconds.backward,
                          is_stop_requested() ? 1.0 : 0.0, computed_s_};
    const std::vector<double> of_ranks = world_.all_gather(mine);
    report.loss = 0;
    std::vector<double> seconds;
    for (std::size_t i = 0; i < of_ranks.size(); i += mine.size()) {
        seconds.push_back(of_ranks[i + 4]);
        report.loss += of_ranks[i];
        report.seconds.forward = std::max(report.seconds.forward, of_ranks[i + 1]);
        report.seconds.backward = std::max(report.seconds.backward, of_ranks[i + 2]);
        report.is_stop_requested = report.is_stop_requested || of_ranks[i + 3] > 0;
    }
    seconds.resize(static_cast<std::size_t>(config::computing_ranks(run_, world_.size())));
    report.computed = slowest_of(seconds);
}

StepReport Trainer::step(const StepEnded& ended) {
    StepReport report;
    report.step = steps_done() + 1;
    const engine::StepSettings step{.groups = hypers(run_.train, steps_done()),
                                    .clip_norm = run_.train.clip_norm};
    report.learning_rate = step.groups.front().rate;
    report.loss_scale = engine().loss_scale();
    const auto moved_before = network_ ? network_->traffic() : model::NetworkTraffic();
    engine().begin_forward();
    Stopwatch watch;
    const double waited = engine().waited_seconds();
    report.loss = forward_pass(report);
    report.seconds.forward = watch.lap() - (engine().waited_seconds() - waited);
    computed_s_ = report.seconds.forward;

    if (engine().is_under_way()) {
        const StepReport before = finish();
        if (ended) {
            ended(before);
        }
        engine().commit();
        watch.lap();
    }
    engine().begin_backward(step);
    backward_pass();
    if (network_) {
        step_traffic_ += network_->traffic() - moved_before;
    }
    const engine::GradientFacts facts = engine().end_gradients();
    report.seconds.backward = watch.lap();
    report.gradient_norm = facts.norm;
    report.is_skipped = !facts.is_finite;
    report.guess = facts.guess;
    engine().update();
    add_up_losses(report);
    report_ = report;
    return report;
}

StepReport Trainer::finish() {
    const engine::UpdateReport update = engine().finish();
    StepReport report = std::exchange(report_, StepReport());
    report.seconds.update = update.update_s;
    report.seconds.hidden = update.hidden_s;
    report.devices = update.devices;
    report.drives = update.drives;
    report.sender = update.sender;
    report.receiver = update.receiver;
    report.nccl = update.nccl;
    report.nccl_s = update.nccl_s;
    report.network_s = update.network_s;
    report.traffic = update.traffic;
    report.deltas = update.deltas;
    return report;
}

}  // namespace nearstep::train
