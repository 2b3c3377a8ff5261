// One training run on all ranks: text, network and engine, and the step that combines them.
#pragma once

#include "config/run_settings.hpp"
#include "data/text.hpp"
#include "model/network.hpp"
#include "mpi/communicator.hpp"
#include "nearstep/run.hpp"
#include "report/record.hpp"
#include "train/gpu_share.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::train {

using report::HeldOutLoss;
using report::StepReport;

// All calls are collective. Throws ConfigError on all ranks alike if data, sizes or folders are
// unusable. A step's update still runs when step() returns, except in the modes without overlap
// (engine::overlaps_steps): the next forward uses each block once its parameters are final.
// finish() waits for the update; all calls except step() need it first.
class Trainer {
public:
    struct Options {
        engine::StartRequest request = {};
        std::string granted_devices = {};     // see config::places_of_devices
        std::string fault_plan = {};          // see FaultPoints
        trace::Timeline* timeline = nullptr;  // outlives the trainer; null: no tracing
    };

    // Opens the run and makes its network. begin() must follow.
    Trainer(const mpi::Communicator& world, const config::RunSettings& run, data::Corpus corpus,
            const Options& options);

    // Begins the run as the engine does, with the model's start values.
    engine::BeginReport begin();

    // Runs a step up to its update, which begins. The report lacks the update's seconds, traffic
    // and deltas. A previous step still under way ends after forward: then `ended` is called on all
    // ranks with its complete report, and the step is committed.
    using StepEnded = std::function<void(const StepReport&)>;
    StepReport step(const StepEnded& ended = {});

    // Ends the step under way, which must exist, and returns its complete report. Call it before
    // the trainer is destroyed.
    StepReport finish();

    // The engine, for the state and its commits, checkpoints and digests.
    engine::Run& engine() { return *opened_; }
    const engine::Run& engine() const { return *opened_; }

    std::int64_t steps_done() const { return engine().steps_done(); }
    std::size_t parameters() const { return geometry_.elems; }
    // Whether this rank has a part of the batch.
    bool computes() const { return network_ != nullptr; }
    // Says where and with what this rank's model computes.
    std::string describe_model() const;
    const model::ComputeDevice& compute_device() const { return compute_device_; }
    // The part of the GPU that this rank uses; null if the model runs on the CPU, or if the program
    // has no CUDA.
    const GpuShare* gpu() const { return gpu_ ? &*gpu_ : nullptr; }
    // Rank 0's, on rank 0, after `steps` steps of this process.
    std::optional<report::GpuUse> gpu_use(std::size_t steps) const {
        return gpu_use_of_ranks(world_, gpu_, step_traffic_, steps);
    }

    // nullopt if any rank was asked to stop before the end.
    std::optional<HeldOutLoss> evaluate();

    // Text of `tokens` tokens that continues `prompt`, on rank 0; empty on other ranks.
    std::string sample(const std::string& prompt, int tokens);

private:
    // Rows [begin, end) of a batch.
    struct Rows {
        std::int64_t begin = 0;
        std::int64_t end = 0;
    };

    void open_run(const Options& options);
    Rows rows_of(std::int64_t all) const;
    std::size_t gpu_work_bytes() const;
    void plan_gpu(int machine_ranks);
    model::Residence plan_cpu(int machine_ranks) const;
    engine::Fill start_values();
    std::vector<model::MicroBatch> draw_batches();
    void await_parameters(int block, int next, int end);
    double forward_pass(const StepReport& report);
    void backward_pass();
    void add_up_losses(StepReport& report) const;

    const mpi::Communicator& world_;
    config::RunSettings run_;
    model::Geometry geometry_;
    data::Corpus corpus_;
    trace::Timeline* timeline_;
    model::ComputeDevice compute_device_;
    std::optional<engine::Run> opened_;
    std::optional<GpuShare> gpu_;
    // Reads the engine's parameters. Null: this rank computes nothing.
    std::unique_ptr<model::Network> network_;
    model::NetworkTraffic step_traffic_;  // over all steps
    StepReport report_;                   // of the step under way
    double computed_s_ = 0;               // by this rank's network in the step under way
    // This rank's rows of the global batch, and the tokens drawn for them.
    std::int64_t first_row_ = 0;
    int rows_ = 0;
    std::vector<std::int32_t> tokens_;
    std::vector<std::int32_t> targets_;
};

// One line with the settings that determine the parameter vector, the tokenizer unless tokens are
// bytes, and the optimizer's moments. A state fits a run if the lines are equal.
std::string model_line(const config::RunSettings& run, const data::Tokenizer& tokenizer);

}  // namespace nearstep::train
