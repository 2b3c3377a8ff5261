// Forward and backward of a step, block by block: parameters come before a block is computed,
// gradients go after it.
#include "base/error.hpp"
#include "train/stopwatch.hpp"
#include "train/trainer.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace nearstep::train {

namespace {

using trace::Counter;
using trace::Lane;

trace::Subject of_block(int block) {
    return {.kind = "block", .number = static_cast<std::size_t>(block)};
}

// What parameters that travel between ranks are counted as.
constexpr std::array kParameterCounters = {Counter::network_parameters, Counter::node_parameters};

}  // namespace

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

// For tests.
void Trainer::harm_gradient(std::span<float> gradient) {
    if (faults_.is_armed() && faults_.arrive(FaultPhase::gradient) != FaultAction::none) {
        expects(!pipeline_->has_gpu(), "gradients that are harmed lie on the host");
        gradient.front() = std::numeric_limits<float>::infinity();
    }
}

}  // namespace nearstep::train
