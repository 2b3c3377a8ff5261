// A training step: parameters arrive before a block is computed, gradients leave after it, and the
// update overlaps the next forward. Called by clients for each block.
#include "base/error.hpp"
#include "base/random.hpp"
#include "base/statistics.hpp"
#include "base/stopwatch.hpp"
#include "csd/gpu_tensors.hpp"
#include "engine/engine.hpp"

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

void Engine::begin_forward() {
    if (!is_under_way()) {
        count_from_here();
    }
    if (timeline_ != nullptr) {
        timeline_->begin_step(steps_done_ + 1);
    }
}

void Engine::count_from_here() {
    counted_ = traffic_.snapshot();
    counted_deltas_ = pipeline_->delta_tally();
}

// Parameters that the next step brings before the step under way has ended are not the latter's.
void Engine::await_parameters(std::size_t block, std::span<const shard::ElementRange> now,
                              std::span<const shard::ElementRange> later) {
    gpu_traffic_->bring_parameters(block);
    if (now.empty() || !pipeline_->must_await()) {
        return;
    }
    const trace::Span span(timeline_, Lane::exchange, "parameters", of_block(block));
    const trace::TrafficSnapshot before = traffic_.snapshot();
    pipeline_->await(now, later);
    if (has_parts() && is_under_way()) {
        const trace::TrafficSnapshot moved = traffic_.snapshot() - before;
        for (const Counter counter : kParameterCounters) {
            brought_.bytes.at(static_cast<std::size_t>(counter)) += moved[counter];
        }
    }
}

std::size_t Engine::final_end(std::size_t block) const {
    if (has_parts()) {
        return 0;
    }
    return pipeline_->must_await() ? block + 1 : layout_.blocks.size();
}

void Engine::hold_parameters() {
    expects(!is_under_way(), "a step is finished before its parameters are used");
    const shard::ElementRange all{0, layout_.elems};
    pipeline_->hold({&all, 1}, {});
}

void Engine::end_pass() {
    pipeline_->hold({}, {});
    gpu_traffic_->finish_pass();
}

// --- Gradients ---

// Whether the factor of an update that begins early is not known. fp16 always needs the guess,
// because its loss scale is found by skipping steps.
bool Engine::must_guess() const {
    return layout_.dtype == Dtype::fp16 || (step_.clip_norm > 0 && last_norm_ == 0);
}

// The gradient factor for an update that begins early: known or guessed.
std::optional<double> Engine::early_factor() const {
    if (!overlaps_steps(settings_.mode) || options_.puts_at_once ||
        (must_guess() && !guess_.is_unclipped())) {
        return std::nullopt;
    }
    return must_guess() ? 1 : clip_factor(last_norm_, step_.clip_norm);
}

// Expects a step like the last one; of a first step nothing is known.
void Engine::expect_backward() {
    expects(pipeline_->stage() == offload::Stage::idle, "a step is finished before the next one");
    if (!step_.groups.empty()) {
        read_ahead();
    }
}

void Engine::begin_backward(const Step& step) {
    expects(!is_under_way(), "a step is finished before the next one's gradients come");
    step_ = step;
    use_scalars();
    held_->begin_step();
    const bool is_warmup = steps_done_ < settings_.compress.warmup_steps;
    const RouteCodecs codecs = route_.of_step(steps_done_);
    pipeline_->begin_step({.codec = codecs.sent,
                           .random_key = random_bits(identity_.seed, kGradientStream,
                                                     static_cast<std::uint64_t>(steps_done_)),
                           .feeds_back = settings_.compress.error_feedback && !is_warmup},
                          codecs.handed, codecs.of_nodes);
    read_ahead();
    if (const std::optional<double> factor = early_factor()) {
        world_.barrier();     // all ranks have committed the previous step before any writes
        deliver_to(nullptr);  // the client still uses its tensors
        begin_update(*factor);
    }
}

// Divides the tensors for the step's update.
void Engine::use_scalars() {
    if (scalar_sets_.begin_step(step_, pipeline_->generation() + 1)) {
        for (const auto& device : pipeline_->devices()) {
            device->use_groups(scalar_sets_.elements());
        }
    }
}

// The update begins with the last blocks if it begins in backward. Where links are shaped, reads
// begin with the update, as in the paper and in the planner's model.
void Engine::read_ahead() {
    if (!overlaps_steps(settings_.mode) || links_ != nullptr) {
        return;
    }
    if (timeline_ != nullptr) {
        timeline_->begin_update(steps_done_ + 1);
    }
    pipeline_->read_ahead(early_factor() ? csd::ReadAhead::from_last : csd::ReadAhead::from_first);
}

// Puts a fault into the gradient, if a test's fault plan asks for it.
void Engine::harm_gradient(std::span<float> gradient) {
    if (faults_.is_armed() && faults_.arrive(FaultPhase::gradient) != FaultAction::none) {
        expects(!gradient.empty() && !pipeline_->has_gpu(),
                "gradients that are harmed are this rank's and lie on the host");
        gradient.front() = std::numeric_limits<float>::infinity();
    }
}

bool Engine::waits_for_all_gradients() const { return has_parts() && options_.puts_in_any_order; }

std::span<float> Engine::gradient_space(std::size_t block) {
    const bool is_next = block == held_->next() && !held_->is_held(block);
    return is_next && !waits_for_all_gradients() ? pipeline_->gradient_space(block)
                                                 : held_->hold(block);
}

void Engine::add_gradient(std::size_t block, std::span<const float> gradient) {
    held_->add(block, gradient);
}

void Engine::put_gradient(std::size_t block) {
    held_->complete(block);
    if (!waits_for_all_gradients()) {
        put_complete_gradients();
    }
}

// Sends blocks in the same order on all ranks, however they arrived.
void Engine::put_complete_gradients() {
    for (auto block = held_->next(); block && held_->is_complete(*block); block = held_->next()) {
        const std::span<float> space = pipeline_->gradient_space(*block);
        held_->release(space);
        harm_gradient(space);
        send_gradient(*block);
    }
}

void Engine::send_gradient(std::size_t block) {
    gpu_traffic_->take_gradients(block);
    {
        const trace::Span span(timeline_, Lane::exchange, "gradient", of_block(block));
        pipeline_->put_gradient(block);
    }
    faults_.pass(FaultPhase::after_scatter);
}

GradientFacts Engine::end_gradients(const StepEnd& end) {
    put_complete_gradients();
    expects(!held_->next(), "the gradients of all blocks are put before they end");
    {
        const trace::Span span(timeline_, Lane::exchange, "norm");
        const offload::GradientSum sum = pipeline_->finish_gradients();
        gradients_ = {.norm = sum.norm / loss_scale_.value(),
                      .is_finite = sum.is_finite,
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
double Engine::factor() const {
    return clip_factor(last_norm_ > 0 ? last_norm_ : gradients_.norm, step_.clip_norm);
}

void Engine::judge_guess() {
    if (gradients_.is_given_up) {
        return;
    }
    const bool is_right = gradients_.is_finite && factor() == 1;
    if (pipeline_->is_updating() && must_guess()) {
        gradients_.guess = is_right ? trace::Guess::right : trace::Guess::wrong;
    }
    guess_.note_step(is_right);
}

// --- The update ---

// Commits are prepared after the update.
void Engine::begin_update(double factor) {
    begun_factor_ = factor;
    if (options_.tensors != nullptr) {
        options_.tensors->forget();
    }
    if (timeline_ != nullptr) {
        timeline_->begin_update(steps_done_ + 1);
    }
    pipeline_->begin_update(step_scalars(scalar_sets_.sets(), identity_.seed,
                                         pipeline_->generation() + 1, factor / loss_scale_.value()),
                            [this] {
                                if (settings_.csd.durability == config::Durability::step) {
                                    prepare_commit();
                                }
                            });
}

// Undoes an update that began before the step was found not to take place. The devices wrote beside
// the last step's state, which is intact. Their new parameters in the vector are replaced from that
// state, as are those that the vector lacks because the client's tensors have them. Other ranks
// received none yet, and no delta was applied.
void Engine::skip_update() {
    const bool is_old = options_.tensors != nullptr && options_.tensors->have_any();
    if (pipeline_->skip_update() || is_old) {
        load_last_parameters();
        world_.barrier();  // ranks of a node may share the vector
    }
}

void Engine::load_last_parameters() {
    if (delivery(settings_, options_.parameters) == csd::Delivery::parameters) {
        visit_states(pool_, [this](const auto& of, const csd::StateArrays& state) {
            of.read(pipeline_->generation(), state);
            load_into_vector(of, state);
        });
    }
    if (options_.tensors != nullptr) {
        options_.tensors->forget();
    }
}

void Engine::abandon_step() {
    if (!is_under_way() && pipeline_->is_updating()) {
        pipeline_->cancel_update();
        load_last_parameters();
    }
}

void Engine::deliver_to(csd::GpuTensors* tensors) {
    for (const auto& device : pipeline_->devices()) {
        device->deliver_to(tensors);
    }
}

// The devices still have the step's gradients and the previous state. An update with a wrong factor
// is cancelled, and the right one overwrites what it wrote.
void Engine::begin_right_update() {
    const double right = factor();
    const bool has_begun = pipeline_->is_updating() && begun_factor_ == right;
    if (pipeline_->is_updating() && !has_begun) {
        pipeline_->cancel_update();
        faults_.pass(FaultPhase::after_undo);
    }
    deliver_to(options_.tensors);
    if (!has_begun) {
        begin_update(right);
    }
}

// The update begins anew if it began with other tensors.
void Engine::leave_out(const std::vector<std::size_t>& skipped) {
    if (pipeline_->is_updating()) {
        pipeline_->cancel_update();
        gradients_.guess = trace::Guess::wrong;
    }
    step_.skipped = skipped;
    use_scalars();
}

void Engine::update() {
    if (takes_place()) {
        begin_right_update();
        pipeline_->accept_update();
        if (reader_) {
            reader_->use(pipeline_->generation() + 1);  // of blocks that were awaited
        }
        scalar_sets_.end_step();
        keep_norm(gradients_.norm);
    } else {
        skip_update();
    }
    finish_step();
    if (!overlaps_steps(settings_.mode)) {
        wait_for_update();
    }
}

void Engine::finish_step() {
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

void Engine::wait_for_update() {
    if (pipeline_->is_updating()) {
        const trace::Span span(timeline_, Lane::exchange, "parameters");
        pipeline_->finish_update();
    }
}

UpdateReport Engine::finish() {
    wait_for_update();
    const offload::UpdateTimes times = pipeline_->finish_step();
    commit_seconds_ += times.after_s;
    UpdateReport report;
    const double hidden = std::max(times.update_s + times.after_s - times.waited_s, 0.0);
    const double devices_s = pipeline_->devices().empty() ? 0 : times.devices_s;
    const std::array mine{times.update_s, -hidden, devices_s};
    const std::vector<double> of_ranks = world_.all_gather(mine);
    report.update_s = times.update_s;
    report.hidden_s = hidden;
    std::vector<double> of_devices;
    for (std::size_t i = 0; i < of_ranks.size(); i += mine.size()) {
        report.update_s = std::max(report.update_s, of_ranks[i]);
        report.hidden_s = std::min(report.hidden_s, -of_ranks[i + 1]);
        of_devices.push_back(of_ranks[i + 2]);
    }
    report.devices = slowest_of(of_devices);
    // Traffic since the previous report, without what the next step brought.
    const trace::TrafficSnapshot now =
        traffic_.snapshot() - std::exchange(brought_, trace::TrafficSnapshot());
    report.traffic = now - std::exchange(counted_, now);
    network_sent_bytes_ +=
        report.traffic[Counter::network_gradients] + report.traffic[Counter::network_parameters];
    world_.sum(std::span(report.traffic.bytes));
    if (delivery(settings_, options_.parameters) == csd::Delivery::deltas) {
        const codec::DeltaTally deltas = pipeline_->delta_tally();
        report.deltas = deltas - std::exchange(counted_deltas_, deltas);
        world_.sum(std::span(report.deltas.tiles));
        world_.sum(std::span(report.deltas.bytes));
    }
    return report;
}

// --- Durability ---

void Engine::prepare_commit() {
    faults_.pass(FaultPhase::before_commit);
    log_.prepare(pipeline_->devices());
}

void Engine::keep_program(std::span<const std::byte> bytes) {
    expects(options_.program != ProgramUse::none, "the client said that it keeps something");
    kept_step_ = steps_done_;
    if (settings_.csd.durability == config::Durability::step) {
        log_.keep_program(steps_done_, bytes);
    }
}

void Engine::commit() {
    expects(!pipeline_->is_updating(), "a step is finished before it is committed");
    if (settings_.csd.durability != config::Durability::step) {
        return;
    }
    expects(options_.program == ProgramUse::none || kept_step_ == steps_done_,
            "what the client keeps is durable before the manifests name the step");
    Stopwatch watch;
    if (!log_.is_prepared()) {
        prepare_commit();
    }
    pipeline_->commit(log_, position());
    faults_.pass(FaultPhase::after_commit);
    commit_seconds_ += watch.lap();
}

}  // namespace nearstep::engine
