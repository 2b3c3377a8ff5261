// A training step: parameters arrive before a block is computed, gradients leave after it, and the
// update overlaps the next forward.
#include "base/error.hpp"
#include "base/random.hpp"
#include "base/stopwatch.hpp"
#include "engine/hyper.hpp"
#include "engine/storage_engine.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace nearstep::engine {

namespace {

using trace::Counter;
using trace::Lane;

// Random stream for the rounding of gradients.
constexpr std::uint64_t kGradientStream = 0x6772616469656E74U;

// Counters of parameters that travel between ranks.
constexpr std::array kParameterCounters = {Counter::network_parameters, Counter::node_parameters};

trace::Subject of_block(std::size_t block) { return {.kind = "block", .number = block}; }

}  // namespace

// --- Passes over the blocks ---

void StorageEngine::begin_forward() {
    if (!under_way_) {
        count_from_here();
    }
    if (timeline_ != nullptr) {
        timeline_->begin_step(steps_done_ + 1);
    }
}

void StorageEngine::count_from_here() {
    counted_ = traffic_.snapshot();
    counted_deltas_ = pipeline_->delta_tally();
}

// The end of the ranges' blocks, in whole tiles.
std::size_t StorageEngine::tiles_end(std::span<const shard::ElementRange> ranges) const {
    std::size_t end = 0;
    for (const shard::ElementRange& range : ranges) {
        const auto last = std::find_if(layout_.blocks.begin(), layout_.blocks.end(),
                                       [&](const auto& block) { return block.end >= range.end; });
        end = std::max(end, shard::tiles_of(last->end));
    }
    return end;
}

void StorageEngine::hold_parameters_of(std::span<const shard::ElementRange> now,
                                       std::span<const shard::ElementRange> later) {
    const trace::TrafficSnapshot before = traffic_.snapshot();
    window_->hold(now, later);
    const trace::TrafficSnapshot moved = traffic_.snapshot() - before;
    for (const Counter counter : kParameterCounters) {
        auto& brought = brought_.bytes.at(static_cast<std::size_t>(counter));
        brought += under_way_ ? moved[counter] : 0;
    }
}

void StorageEngine::await_parameters(std::size_t block, std::span<const shard::ElementRange> now,
                                     std::span<const shard::ElementRange> later) {
    gpu_traffic_->bring_parameters(block);
    // An update that backward began belongs to this step and brings nothing yet.
    const bool is_updating = under_way_ && pipeline_->is_updating();
    if (now.empty() || (!window_ && !is_updating)) {
        return;
    }
    const trace::Span span(timeline_, Lane::exchange, "parameters", of_block(block));
    Stopwatch watch;
    if (window_) {
        hold_parameters_of(now, later);
    } else {
        pipeline_->advance_update(tiles_end(now));
        pipeline_->poll_update();
    }
    if (is_updating) {
        const double waited = watch.lap();
        under_way_->waited += waited;
        waited_seconds_ += waited;
    }
}

std::size_t StorageEngine::final_end(std::size_t block) const {
    if (window_) {
        return 0;
    }
    const bool is_updating = under_way_ && pipeline_->is_updating();
    return is_updating ? block + 1 : layout_.blocks.size();
}

void StorageEngine::hold_parameters() {
    expects(!under_way_, "a step is finished before its parameters are used");
    if (window_) {
        const shard::ElementRange all{0, layout_.elems};
        window_->hold({&all, 1}, {});
    }
}

void StorageEngine::end_pass() {
    if (window_) {
        window_->drop_all();
    }
    gpu_traffic_->finish_pass();
}

// --- Gradients ---

// Whether the factor of an update that begins early is not known. fp16 always needs the guess,
// because its loss scale is found by skipping steps.
bool StorageEngine::must_guess() const {
    return layout_.dtype == Dtype::fp16 || (step_.clip_norm > 0 && last_norm_ == 0);
}

// The gradient factor for an update that begins early: known or guessed.
std::optional<double> StorageEngine::early_factor() const {
    if (!overlaps_steps(settings_.mode) || (must_guess() && !guess_.is_unclipped())) {
        return std::nullopt;
    }
    return must_guess() ? 1 : clip_factor(last_norm_, step_.clip_norm);
}

// Expects a step like the last one; of a first step nothing is known.
void StorageEngine::expect_backward() {
    expects(!under_way_ && !pipeline_->is_updating(), "a step is finished before the next one");
    if (!step_.groups.empty()) {
        read_ahead();
    }
}

void StorageEngine::begin_backward(const Step& step) {
    expects(!under_way_, "a step is finished before the next one's gradients come");
    step_ = step;
    use_scalars();
    held_->begin_step();
    const bool is_warmup = steps_done_ < settings_.compress.warmup_steps;
    const RouteCodecs codecs = route_.of_step(steps_done_);
    pipeline_->begin_step({.codec = codecs.sent,
                           .random_key = random_bits(identity_.seed, kGradientStream,
                                                     static_cast<std::uint64_t>(steps_done_)),
                           .feeds_back = settings_.compress.error_feedback && !is_warmup},
                          codecs.handed);
    is_guess_ = must_guess();
    begun_factor_ = early_factor();
    read_ahead();
    if (begun_factor_) {
        world_.barrier();  // all ranks have committed the previous step before any writes
        begin_update(*begun_factor_);
    }
}

// Divides the tensors for the step's update.
void StorageEngine::use_scalars() {
    if (scalar_sets_.begin_step(step_, pipeline_->generation() + 1)) {
        for (const auto& device : pipeline_->devices()) {
            device->use_groups(scalar_sets_.elements());
        }
    }
}

// The update begins with the last blocks if it begins in backward. Where links are shaped, reads
// begin with the update, as in the paper and in the planner's model.
void StorageEngine::read_ahead() {
    const auto order = early_factor() ? csd::ReadAhead::from_last : csd::ReadAhead::from_first;
    if (!overlaps_steps(settings_.mode) || links_ != nullptr || ahead_ == order) {
        return;
    }
    if (ahead_) {  // the step is not as expected
        pipeline_->drop_read_ahead();
    }
    if (timeline_ != nullptr) {
        timeline_->begin_update(steps_done_ + 1);
    }
    pipeline_->read_ahead(order);
    ahead_ = order;
}

// For tests.
void StorageEngine::harm_gradient(std::span<float> gradient) {
    if (faults_.is_armed() && faults_.arrive(FaultPhase::gradient) != FaultAction::none) {
        expects(!pipeline_->has_gpu(), "gradients that are harmed lie on the host");
        gradient.front() = std::numeric_limits<float>::infinity();
    }
}

bool StorageEngine::waits_for_all_gradients() const {
    return window_.has_value() && options_.puts_in_any_order;
}

std::span<float> StorageEngine::gradient_space(std::size_t block) {
    const bool is_next = block == held_->next() && !held_->is_held(block);
    return is_next && !waits_for_all_gradients() ? pipeline_->gradient_space(block)
                                                 : held_->hold(block);
}

void StorageEngine::add_gradient(std::size_t block, std::span<const float> gradient) {
    held_->add(block, gradient);
}

void StorageEngine::put_gradient(std::size_t block) {
    held_->complete(block);
    if (!waits_for_all_gradients()) {
        put_complete_gradients();
    }
}

// Sends blocks in the same order on all ranks, however they arrived.
void StorageEngine::put_complete_gradients() {
    for (auto block = held_->next(); block && held_->is_complete(*block); block = held_->next()) {
        const std::span<float> space = pipeline_->gradient_space(*block);
        held_->release(space);
        harm_gradient(space);
        send_gradient(*block);
    }
}

void StorageEngine::send_gradient(std::size_t block) {
    gpu_traffic_->take_gradients(block);
    {
        const trace::Span span(timeline_, Lane::exchange, "gradient", of_block(block));
        pipeline_->put_gradient(block);
    }
    faults_.pass(FaultPhase::after_scatter);
}

GradientFacts StorageEngine::end_gradients(const StepEnd& end) {
    put_complete_gradients();
    expects(!held_->next(), "the gradients of all blocks are put before they end");
    {
        const trace::Span span(timeline_, Lane::exchange, "norm");
        const offload::GradientFacts facts = pipeline_->finish_gradients();
        gradients_ = {.norm = facts.norm / loss_scale_.value(),
                      .is_finite = facts.is_finite,
                      .is_given_up = end.is_given_up};
    }
    judge_guess();
    if (takes_place() && end.skipped && *end.skipped != step_.skipped) {
        leave_out(*end.skipped);
    }
    faults_.pass(FaultPhase::after_gradients);
    return gradients_;
}

// The step's clip factor, from the norm that clips it.
double StorageEngine::factor() const {
    return clip_factor(last_norm_ > 0 ? last_norm_ : gradients_.norm, step_.clip_norm);
}

void StorageEngine::judge_guess() {
    if (gradients_.is_given_up) {
        return;
    }
    const bool is_right = gradients_.is_finite && factor() == 1;
    if (begun_factor_ && is_guess_) {
        gradients_.guess = is_right ? trace::Guess::right : trace::Guess::wrong;
    }
    guess_.note_step(is_right);
}

// --- The update ---

// Commits are prepared after the update.
void StorageEngine::begin_update(double factor) {
    ahead_ = std::nullopt;
    if (timeline_ != nullptr) {
        timeline_->begin_update(steps_done_ + 1);
    }
    pipeline_->begin_update(step_scalars(scalar_sets_.sets(), identity_.seed,
                                         pipeline_->generation() + 1, factor / loss_scale_.value()),
                            vector_.span(), [this] {
                                if (settings_.csd.durability == "step") {
                                    prepare_commit();
                                }
                            });
}

// Undoes an update that began before a gradient was found not finite. The devices wrote beside the
// last step's state, which is intact. Their new parameters in the vector are replaced from that
// state. Other ranks received none yet, and no delta was applied.
void StorageEngine::undo_update() {
    pipeline_->cancel_update();
    load_last_parameters();
    world_.barrier();  // ranks of a node may share the vector
}

void StorageEngine::load_last_parameters() {
    if (delivery(settings_) == csd::Delivery::parameters) {
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
}

void StorageEngine::abandon_step() {
    if (!under_way_ && pipeline_->is_updating()) {
        pipeline_->cancel_update();
        load_last_parameters();
    }
}

// The devices still have the step's gradients and the previous state. An update with a wrong factor
// is cancelled, and the right one overwrites what it wrote.
void StorageEngine::begin_right_update() {
    const double right = factor();
    if (begun_factor_ == right) {
        return;
    }
    if (begun_factor_) {
        pipeline_->cancel_update();
        faults_.pass(FaultPhase::after_undo);
    }
    begin_update(right);
}

// The update begins anew if it began with other tensors.
void StorageEngine::leave_out(const std::vector<std::size_t>& skipped) {
    if (begun_factor_) {
        pipeline_->cancel_update();
        begun_factor_ = std::nullopt;
        gradients_.guess = trace::Guess::wrong;
    }
    step_.skipped = skipped;
    use_scalars();
}

void StorageEngine::update() {
    if (takes_place()) {
        begin_right_update();
        pipeline_->accept_update();
        scalar_sets_.end_step();
        keep_norm(gradients_.norm);
    } else if (begun_factor_) {
        undo_update();
    } else {
        pipeline_->drop_read_ahead();
        ahead_ = std::nullopt;
    }
    finish_step();
    under_way_ = UnderWay{};
    if (takes_place() && !overlaps_steps(settings_.mode)) {
        under_way_->times = wait_for_update();
    }
}

void StorageEngine::finish_step() {
    if (gradients_.is_given_up) {
        return;
    }
    const double before = loss_scale_.value();
    loss_scale_.after_step(gradients_.is_finite);
    if (pipeline_->residual() != nullptr && loss_scale_.value() != before) {
        pipeline_->residual()->scale(static_cast<float>(loss_scale_.value() / before));
    }
    ++steps_done_;
}

offload::UpdateTimes StorageEngine::wait_for_update() {
    const trace::Span span(timeline_, Lane::exchange, "parameters");
    Stopwatch watch;
    const offload::UpdateTimes times = pipeline_->finish_update();
    const double waited = watch.lap();
    under_way_->waited += waited;
    waited_seconds_ += waited;
    commit_seconds_ += times.after_s;
    return times;
}

UpdateReport StorageEngine::finish() {
    expects(under_way_.has_value(), "a step that is finished was begun");
    if (pipeline_->is_updating()) {
        under_way_->times = wait_for_update();
    }
    const UnderWay over = *std::exchange(under_way_, std::nullopt);
    UpdateReport report;
    const double hidden = std::max(over.times.update_s + over.times.after_s - over.waited, 0.0);
    const std::array mine{over.times.update_s, -hidden};
    const std::vector<double> of_ranks = world_.all_gather(mine);
    report.update_s = over.times.update_s;
    report.hidden_s = hidden;
    for (std::size_t i = 0; i < of_ranks.size(); i += mine.size()) {
        report.update_s = std::max(report.update_s, of_ranks[i]);
        report.hidden_s = std::min(report.hidden_s, -of_ranks[i + 1]);
    }
    // Traffic since the previous report, without what the next step brought.
    const trace::TrafficSnapshot now =
        traffic_.snapshot() - std::exchange(brought_, trace::TrafficSnapshot());
    report.traffic = now - std::exchange(counted_, now);
    network_sent_bytes_ +=
        report.traffic[Counter::network_gradients] + report.traffic[Counter::network_parameters];
    world_.sum(std::span(report.traffic.bytes));
    if (delivery(settings_) == csd::Delivery::deltas) {
        const codec::DeltaTally deltas = pipeline_->delta_tally();
        report.deltas = deltas - std::exchange(counted_deltas_, deltas);
        world_.sum(std::span(report.deltas.tiles));
        world_.sum(std::span(report.deltas.bytes));
    }
    return report;
}

// --- Durability ---

void StorageEngine::prepare_commit() {
    faults_.pass(FaultPhase::before_commit);
    log_.prepare(pipeline_->devices());
}

void StorageEngine::commit() {
    expects(!pipeline_->is_updating(), "a step is finished before it is committed");
    if (settings_.csd.durability != "step") {
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

}  // namespace nearstep::engine
