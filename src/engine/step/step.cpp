// A training step: parameters arrive before a block is computed, gradients leave after it, and the
// update overlaps the next forward. Called by Run for the client.
#include "engine/step/step.hpp"

#include "base/error.hpp"
#include "base/random.hpp"
#include "base/statistics.hpp"
#include "csd/gpu_tensors.hpp"
#include "engine/placement/devices.hpp"

#include <algorithm>
#include <array>
#include <iterator>
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

Step::Step(Resources& resources)
    : resources_(resources),
      pipeline_(*resources.pipeline),
      gpu_traffic_(resources.settings, resources.layout,
                   resources.computes() ? resources.links.get() : nullptr,
                   static_cast<int>(resources.nodes.ranks_beside(resources.world.rank()).size())),
      loss_scale_(resources.layout.dtype, resources.options.loss_scale),
      scalar_sets_(resources.layout, most_scalar_sets(resources.settings)) {}

// --- Passes over the blocks ---

void Step::begin_forward() {
    if (!is_under_way()) {
        count_from_here();
    }
    if (resources_.timeline != nullptr) {
        resources_.timeline->begin_step(done_ + 1);
    }
}

void Step::count_from_here() {
    counted_ = resources_.traffic.snapshot();
    counted_deltas_ = pipeline_.delta_tally();
}

// Parameters that the next step brings before the step under way has ended are not the latter's.
void Step::await_parameters(std::size_t block, std::span<const shard::ElementRange> now,
                            std::span<const shard::ElementRange> later) {
    gpu_traffic_.bring_parameters(block);
    if (now.empty() || !pipeline_.must_await()) {
        return;
    }
    const trace::Span span(resources_.timeline, Lane::exchange, "parameters", of_block(block));
    const trace::TrafficSnapshot before = resources_.traffic.snapshot();
    pipeline_.await(now, later);
    if (resources_.has_parts() && is_under_way()) {
        const trace::TrafficSnapshot moved = resources_.traffic.snapshot() - before;
        for (const Counter counter : kParameterCounters) {
            brought_.bytes.at(static_cast<std::size_t>(counter)) += moved[counter];
        }
    }
}

std::size_t Step::final_end(std::size_t block) const {
    if (resources_.has_parts()) {
        return 0;
    }
    return pipeline_.must_await() ? block + 1 : resources_.layout.blocks.size();
}

void Step::hold_parameters() {
    expects(!is_under_way(), "a step is finished before its parameters are used");
    const shard::ElementRange all{0, resources_.layout.elems};
    pipeline_.hold({&all, 1}, {});
}

void Step::end_pass() {
    pipeline_.hold({}, {});
    gpu_traffic_.finish_pass();
}

// --- Gradients ---

// Whether the factor of an update that begins early is not known. fp16 always needs the guess,
// because its loss scale is found by skipping steps.
bool Step::must_guess() const {
    return resources_.layout.dtype == Dtype::fp16 || (settings_.clip_norm > 0 && last_norm_ == 0);
}

// The gradient factor for an update that begins early: known or guessed.
std::optional<double> Step::early_factor() const {
    if (!overlaps_steps(resources_.settings.mode) || resources_.options.puts_at_once ||
        (must_guess() && !guess_.is_unclipped())) {
        return std::nullopt;
    }
    return must_guess() ? 1 : clip_factor(last_norm_, settings_.clip_norm);
}

// Expects a step like the last one; of a first step nothing is known.
void Step::expect_backward() {
    expects(pipeline_.stage() == offload::Stage::idle, "a step is finished before the next one");
    if (!settings_.groups.empty()) {
        read_ahead();
    }
}

void Step::begin_backward(const StepSettings& settings) {
    expects(!is_under_way(), "a step is finished before the next one's gradients come");
    settings_ = settings;
    use_scalars();
    unsent_ = resources_.layout.blocks.size();
    put_.assign(unsent_, {});
    const bool is_warmup = done_ < resources_.settings.compress.warmup_steps;
    const RouteCodecs codecs = resources_.route.of_step(done_);
    pipeline_.begin_step({.codec = codecs.sent,
                          .random_key = random_bits(resources_.identity.seed, kGradientStream,
                                                    static_cast<std::uint64_t>(done_)),
                          .feeds_back = resources_.settings.compress.error_feedback && !is_warmup},
                         codecs.sum_codec, codecs.of_nodes);
    read_ahead();
    if (const std::optional<double> factor = early_factor()) {
        resources_.world.barrier();  // all ranks have committed the previous step before any writes
        deliver_to(nullptr);         // the client still uses its tensors
        begin_update(*factor);
    }
}

// Divides the tensors for the step's update.
void Step::use_scalars() {
    if (scalar_sets_.begin_step(settings_, pipeline_.generation() + 1)) {
        for (const auto& device : pipeline_.devices()) {
            device->use_groups(scalar_sets_.elements());
        }
    }
}

// The update begins with the last blocks if it begins in backward. Where links are shaped, reads
// begin with the update, as in the paper and in the planner's model.
void Step::read_ahead() {
    if (!overlaps_steps(resources_.settings.mode) || resources_.links != nullptr) {
        return;
    }
    if (resources_.timeline != nullptr) {
        resources_.timeline->begin_update(done_ + 1);
    }
    pipeline_.read_ahead(early_factor() ? csd::ReadAhead::from_last : csd::ReadAhead::from_first);
}

// Lets the parts begin with infinity if a test's fault plan asks for it.
void Step::harm(std::vector<shard::GradientPart>& parts) {
    static constexpr float kInfinity = std::numeric_limits<float>::infinity();
    if (resources_.faults.is_armed() &&
        resources_.faults.arrive(FaultPhase::gradient) != FaultAction::none) {
        expects(!parts.empty() && !pipeline_.has_gpu(),
                "gradients that are harmed are this rank's and lie on the host");
        shard::GradientPart& first = parts.front();
        if (first.values != nullptr) {
            first.values = static_cast<const std::byte*>(first.values) + size_bytes(first.dtype);
        }
        --first.elems;
        parts.insert(parts.begin(), {.values = &kInfinity, .dtype = Dtype::fp32, .elems = 1});
    }
}

std::span<float> Step::gradient_space(std::size_t block) {
    expects(block + 1 == unsent_, "memory is lent to the block whose turn it is");
    if (pipeline_.has_gpu()) {
        return pipeline_.gradient_space(block);
    }
    const std::size_t elems = resources_.layout.blocks[block].size();
    space_.resize(std::max(space_.size(), elems));
    return lent_ = std::span(space_).first(elems);
}

void Step::put_gradient(std::size_t block) {
    const std::span<const float> lent = std::exchange(lent_, {});
    const shard::GradientPart part{lent.data(), Dtype::fp32, lent.size()};
    put_gradient(block, {.parts = {&part, lent.empty() ? 0U : 1U}});
}

void Step::put_gradient(std::size_t block, const shard::Gradient& gradient) {
    expects(!put_.at(block).is_put, "a block's gradient is put once in a step");
    put_[block] = {.is_put = true,
                   .parts = {gradient.parts.begin(), gradient.parts.end()},
                   .factor = gradient.factor};
    send_gradients();
}

// Sends blocks in the same order on all ranks, however they arrived.
void Step::send_gradients() {
    for (; unsent_ > 0 && put_[unsent_ - 1].is_put; --unsent_) {
        const std::size_t block = unsent_ - 1;
        PutGradient& of = put_[block];
        harm(of.parts);
        gpu_traffic_.take_gradients(block);
        {
            const trace::Span span(resources_.timeline, Lane::exchange, "gradient",
                                   of_block(block));
            pipeline_.put_gradient(block, {.parts = of.parts, .factor = of.factor});
        }
        resources_.faults.pass(FaultPhase::after_scatter);
    }
}

GradientFacts Step::end_gradients(const StepEnd& end) {
    expects(unsent_ == 0, "the gradients of all blocks are put before they end");
    {
        const trace::Span span(resources_.timeline, Lane::exchange, "norm");
        const offload::GradientSum sum = pipeline_.finish_gradients();
        gradients_ = {.norm = sum.norm / loss_scale_.value(),
                      .is_finite = sum.is_finite,
                      .is_given_up = end.is_given_up};
    }
    judge_guess();
    if (takes_place() && end.skipped && *end.skipped != settings_.skipped) {
        leave_out(*end.skipped);
    }
    resources_.faults.pass(FaultPhase::after_gradients);
    return gradients_;
}

// The step's clip factor, from the norm that clips it.
double Step::factor() const {
    return clip_factor(last_norm_ > 0 ? last_norm_ : gradients_.norm, settings_.clip_norm);
}

void Step::judge_guess() {
    if (gradients_.is_given_up) {
        return;
    }
    const bool is_right = gradients_.is_finite && factor() == 1;
    if (pipeline_.is_updating() && must_guess()) {
        gradients_.guess = is_right ? trace::Guess::right : trace::Guess::wrong;
    }
    guess_.note_step(is_right);
}

// --- The update ---

csd::StepScalars Step::scalars_of(double factor) const {
    return step_scalars(scalar_sets_.sets(), resources_.identity.seed, pipeline_.generation() + 1,
                        factor / loss_scale_.value());
}

// Commits are prepared after the update, unless they were made before it.
void Step::begin_update(double factor) {
    begun_factor_ = factor;
    if (resources_.options.tensors != nullptr) {
        resources_.options.tensors->forget();
    }
    if (resources_.timeline != nullptr) {
        resources_.timeline->begin_update(done_ + 1);
    }
    pipeline_.begin_update(scalars_of(factor), [&resources = resources_] {
        if (resources.is_durable_by_step() && !resources.commits_early()) {
            resources.prepare_commit();
        }
    });
}

// Undoes an update that began before the step was found not to take place. The devices wrote beside
// the last step's state, which is intact. Their new parameters in the vector are replaced from that
// state, as are those that the vector lacks because the client's tensors have them. Other ranks
// received none yet, and no delta was applied.
void Step::skip_update() {
    const bool is_old =
        resources_.options.tensors != nullptr && resources_.options.tensors->have_any();
    if (pipeline_.skip_update() || is_old) {
        load_last_parameters();
        resources_.world.barrier();  // ranks of a node may share the vector
    }
}

void Step::load_last_parameters() {
    if (delivery(resources_.settings, resources_.options.parameters) == csd::Delivery::parameters) {
        resources_.visit_states(resources_.pool,
                                [this](const auto& of, const csd::StateArrays& state) {
                                    of.read(pipeline_.generation(), state);
                                    resources_.load_into_vector(of, state);
                                });
    }
    if (resources_.options.tensors != nullptr) {
        resources_.options.tensors->forget();
    }
}

void Step::abandon() {
    if (!is_under_way() && pipeline_.is_updating()) {
        pipeline_.cancel_update();
        load_last_parameters();
    }
}

void Step::deliver_to(csd::GpuTensors* tensors) {
    for (const auto& device : pipeline_.devices()) {
        device->deliver_to(tensors);
    }
}

// The devices still have the step's gradients and the previous state. An update with a wrong factor
// is cancelled, and the right one overwrites what it wrote.
void Step::cancel_wrong_update() {
    if (pipeline_.is_updating() && begun_factor_ != factor()) {
        pipeline_.cancel_update();
        resources_.faults.pass(FaultPhase::after_undo);
    }
}

// Makes the step durable before its state is written: a restart can repeat the update, which the
// devices have kept. No rank overwrites old state before all name the step.
void Step::commit_update(const Commit& commit) {
    LossScale next = loss_scale_;
    next.after_step(true);
    store::Commit position = this->position();
    ++position.step;
    ++position.generation;
    position.loss_scale = next.value();
    position.good_steps = next.good_steps();
    position.norm = resources_.options.clips_by_last_norm ? gradients_.norm : 0;
    position.missed = scalar_sets_.missed_after_step();
    commit(position);
    resources_.world.barrier();
}

// The update begins anew if it began with other tensors.
void Step::leave_out(const std::vector<std::size_t>& skipped) {
    if (pipeline_.is_updating()) {
        pipeline_.cancel_update();
        gradients_.guess = trace::Guess::wrong;
    }
    settings_.skipped = skipped;
    use_scalars();
}

void Step::update(const Commit& commit) {
    if (takes_place()) {
        cancel_wrong_update();
        if (resources_.keeps_updates()) {
            pipeline_.keep_update(scalars_of(factor()));
        }
        if (resources_.commits_early()) {
            commit_update(commit);
        }
        deliver_to(resources_.options.tensors);
        if (!pipeline_.is_updating()) {
            begin_update(factor());
        }
        pipeline_.accept_update();
        if (resources_.reader) {
            resources_.reader->use(pipeline_.generation() + 1);  // of blocks that were awaited
        }
        scalar_sets_.end_step();
        keep_norm(gradients_.norm);
    } else {
        skip_update();
    }
    count_step();
    if (!overlaps_steps(resources_.settings.mode)) {
        wait_for_update();
    }
}

void Step::count_step() {
    if (gradients_.is_given_up) {
        return;
    }
    const double before = loss_scale_.value();
    loss_scale_.after_step(gradients_.is_finite);
    if (pipeline_.residual() != nullptr && loss_scale_.value() != before) {
        pipeline_.residual()->scale(static_cast<float>(loss_scale_.value() / before));
    }
    ++done_;
}

void Step::wait_for_update() {
    if (pipeline_.is_updating()) {
        const trace::Span span(resources_.timeline, Lane::exchange, "parameters");
        pipeline_.finish_update();
    }
}

// --- From step to step ---

store::Commit Step::position() const {
    return {.step = done_,
            .generation = pipeline_.generation(),
            .loss_scale = loss_scale_.value(),
            .good_steps = loss_scale_.good_steps(),
            .norm = last_norm_,
            .missed = scalar_sets_.missed()};
}

// A residual is scaled like its gradients.
void Step::go_on_at(const store::Commit& position, const std::string& dtype) {
    resources_.go_on_from(position.generation);
    done_ = position.step;
    if (dtype.empty() || dtype == name_of(Dtype::fp16)) {
        loss_scale_.restore(position.loss_scale, position.good_steps);
    }
    if (pipeline_.residual() != nullptr && loss_scale_.value() != position.loss_scale) {
        pipeline_.residual()->scale(static_cast<float>(loss_scale_.value() / position.loss_scale));
    }
    keep_norm(position.norm);
    scalar_sets_.restore(position.missed);
    pipeline_.gather();
}

std::vector<std::int64_t> Step::updates() const {
    std::vector<std::int64_t> updates;
    for (const std::int64_t missed : scalar_sets_.missed_of_tensors()) {
        updates.push_back(pipeline_.generation() - missed);
    }
    return updates;
}

}  // namespace nearstep::engine
