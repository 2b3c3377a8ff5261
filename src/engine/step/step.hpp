// One optimizer step of a rank, over the pipeline: gradients in, update, parameters out; and what
// steps carry on to the next one. Run makes it and passes a client's calls on to it.
#pragma once

#include "engine/resources/resources.hpp"
#include "engine/route/clipping.hpp"
#include "engine/route/gpu_traffic.hpp"
#include "engine/route/loss_scale.hpp"
#include "engine/route/scalar_sets.hpp"
#include "nearstep/layout.hpp"
#include "nearstep/options.hpp"
#include "store/manifest.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nearstep::engine {

// One per rank. run.hpp says what the calls do that it has, too.
class Step {
public:
    // `resources` outlives this. Not collective.
    explicit Step(Resources& resources);

    // Goes on behind the step of that position, whose state the devices hold: brings its
    // parameters. `dtype`: of the parameters in the run that wrote it; empty: unknown. Collective.
    void go_on_at(const store::Commit& position, const std::string& dtype);

    void begin_forward();
    void await_parameters(std::size_t block, std::span<const shard::ElementRange> now,
                          std::span<const shard::ElementRange> later);
    std::size_t final_end(std::size_t block) const;
    void hold_parameters();
    void end_pass();

    void expect_backward();
    void begin_backward(const StepSettings& settings);
    std::span<float> gradient_space(std::size_t block);
    void put_gradient(std::size_t block);
    void put_gradient(std::size_t block, const shard::Gradient& gradient);
    GradientFacts end_gradients(const StepEnd& end);

    // `commit` is called, if devices keep the update, with the position behind it when all of them
    // have kept it.
    using Commit = std::function<void(const store::Commit& position)>;
    void update(const Commit& commit);
    bool is_under_way() const { return pipeline_.stage() == offload::Stage::ending; }
    UpdateReport finish();
    void abandon();

    // The masters changed without a step, as a new generation of the state. Not collective.
    void miss_update() { scalar_sets_.miss_update(); }
    // Traffic is counted from here on.
    void count_from_here();

    // Returns the run's position as manifests and checkpoints list it.
    store::Commit position() const;
    std::int64_t done() const { return done_; }
    double loss_scale() const { return loss_scale_.value(); }
    std::vector<std::int64_t> updates() const;
    // Total seconds that updates took to flush their state.
    double flush_seconds() const { return flush_seconds_; }
    std::vector<std::uint64_t> network_sent_bytes() const;

private:
    Slowest slowest_node(const std::vector<double>& waited_s) const;
    void add_up(UpdateReport& report, const std::map<int, double>& waited_s) const;
    bool must_guess() const;
    std::optional<double> early_factor() const;
    double factor() const;
    void judge_guess();
    void send_gradients();
    void harm(std::vector<shard::GradientPart>& parts);
    void read_ahead();
    void use_scalars();
    void begin_update(double factor);
    csd::StepScalars scalars_of(double factor) const;
    void cancel_wrong_update();
    void commit_update(const Commit& commit);
    void deliver_to(csd::GpuTensors* tensors);
    void leave_out(const std::vector<std::size_t>& skipped);
    bool takes_place() const { return gradients_.is_finite && !gradients_.is_given_up; }
    void skip_update();
    void load_last_parameters();
    void wait_for_update();
    void count_step();
    void keep_norm(double norm) { last_norm_ = resources_.options.clips_by_last_norm ? norm : 0; }

    Resources& resources_;
    offload::StepPipeline& pipeline_;  // of `resources_`
    GpuTraffic gpu_traffic_;
    std::vector<float> space_;  // that gradient_space() lends in host memory
    // The members below describe the current step.
    std::span<float> lent_;
    // The gradients that were put, by block, and the number of blocks that were not sent yet, all
    // of which come before the others.
    struct PutGradient {
        bool is_put = false;
        std::vector<shard::GradientPart> parts;
        float factor = 1;
    };
    std::vector<PutGradient> put_;
    std::size_t unsent_ = 0;
    StepSettings settings_;
    GradientFacts gradients_;
    double begun_factor_ = 1;  // of the update, if it has begun
    ClipGuess guess_;
    // Counters that were already reported, and traffic of parameters that the next step brought
    // before the step under way ended.
    trace::TrafficSnapshot counted_;
    trace::TrafficSnapshot brought_;
    codec::DeltaTally counted_deltas_;
    // The members below outlast the step.
    LossScale loss_scale_;
    ScalarSets scalar_sets_;
    // With clips_by_last_norm: norm of the last step that was not skipped, without loss scale; 0:
    // none.
    double last_norm_ = 0;
    std::int64_t done_ = 0;
    double flush_seconds_ = 0;
    RateSinceStart drives_;                 // of this rank
    std::uint64_t network_sent_bytes_ = 0;  // by this rank, in steps
};

}  // namespace nearstep::engine
