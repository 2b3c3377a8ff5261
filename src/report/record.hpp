// A run's results as plain values. The trainer fills them; the other files of this folder word
// them.
#pragma once

#include "base/statistics.hpp"
#include "codec/delta.hpp"
#include "config/run_settings.hpp"
#include "model/gpu_plan.hpp"
#include "plan/calibration.hpp"
#include "report/endurance.hpp"
#include "report/speed_of_light.hpp"
#include "trace/run_facts.hpp"
#include "trace/timeline.hpp"
#include "trace/traffic.hpp"

#include <array>
#include <cstdint>
#include <numbers>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::report {

struct PhaseSeconds {
    double forward = 0;   // without waiting for the previous update
    double backward = 0;  // includes sending gradients
    double update = 0;    // includes bringing the parameters in
    double hidden = 0;    // part of the update and its flush under backward and the next forward

    double total() const { return forward + backward + update - hidden; }
};

// A rank that took more times the median rank's time than this is named as slow.
constexpr double kSlow = 1.5;

// One step's results, the same on all ranks. Seconds are the slowest rank's (for `hidden` the
// least); traffic is the sum over ranks.
struct StepReport {
    std::int64_t step = 0;  // steps done, with this one
    double loss = 0;        // mean over the global batch, nats per token
    double gradient_norm = 0;
    double learning_rate = 0;
    double loss_scale = 1;
    bool is_skipped = false;  // the gradient was not finite: nothing was updated
    trace::Guess guess = trace::Guess::none;
    bool is_stop_requested = false;  // on any rank, see base/stop_request.hpp
    PhaseSeconds seconds;
    Slowest computed;      // forward and backward
    Slowest devices;       // their update
    Slowest drives;        // by the rate of its drives beside that of the run's first steps
    Slowest sender;        // by how long others waited for its parameters alone
    Slowest receiver;      // by how long it waited for parameters
    Slowest nccl;          // by how long GPUs of other ranks waited for its own in NCCL
    double nccl_s = 0;     // in NCCL, of the rank that was there for the shortest time
    double network_s = 0;  // that parameters came after the slowest devices' update
    trace::TrafficSnapshot traffic;
    codec::DeltaTally deltas;  // zeros without gather.codec = "delta"
};

// Over the evaluated rows of the held-out text, the same on all ranks. Per byte of the text behind
// the rows' targets, to compare runs with different tokenizers.
struct HeldOutLoss {
    double nats_per_token = 0;
    double nats_per_byte = 0;

    double bits_per_byte() const { return nats_per_byte / std::numbers::ln2; }
};

// A run's use of its GPUs.
struct GpuUse {
    std::string name{};  // rank 0's
    int ranks_per_gpu = 1;
    model::GpuPlan plan{};                    // rank 0's
    std::size_t most_bytes = 0;               // GPU memory of the rank that used most
    std::size_t most_tensor_bytes = 0;        // likewise, of tensors in use at once
    std::size_t parameter_step_bytes = 0;     // moved to rank 0's GPU per step
    std::size_t input_step_bytes = 0;         // inputs of blocks per step, out and back in
    std::optional<double> peak_operations{};  // of one GPU, per second
};

// Before the first step: time to find what to resume from, and to read or write the state.
struct StartSeconds {
    double search = 0;
    double begin = 0;
};

// How busy each lane was: seconds of work, of all devices, per second and rank. The sum is how many
// lanes worked at once.
using LaneShares = std::array<double, trace::kLanes>;

// All measurements of a run, for the steps of this process only.
struct RunRecord {
    config::RunSettings run;
    int ranks = 0;
    trace::RunFacts facts = {};    // rank 0's
    std::size_t vector_bytes = 0;  // a rank's parameter vector, between steps
    std::size_t parameters = 0;
    std::vector<StepReport> steps = {};
    StartSeconds start = {};
    double seconds = 0;         // of all steps, commits included
    double commit_seconds = 0;  // of all commits
    std::optional<HeldOutLoss> heldout_loss = {};
    Endurance endurance = {};
    std::optional<std::uint64_t> masters_digest = {};
    std::string checkpoint = {};  // path of the last index; empty: none was written
    // Bytes that each rank sent to other nodes in all steps; empty: not measured.
    std::vector<std::uint64_t> network_sent_bytes = {};
    std::vector<std::string> hosts = {};        // of each rank
    std::optional<LaneShares> lanes = {};       // of a run with a timeline
    std::optional<GpuUse> gpu = {};             // none: the model ran on the CPU
    std::optional<PhaseSeconds> expected = {};  // modelled from the links alone, see prediction.hpp
    plan::Calibration calibration = {};         // measured rates behind `expected`
    std::optional<SpeedOfLight> light = {};     // of train(); compare() has none

    double tokens_per_step() const {
        return static_cast<double>(run.train.global_batch) * run.model.context;
    }
    // Tokens per second over all steps; 0 without one.
    double tokens_per_second() const {
        return seconds > 0 ? tokens_per_step() * static_cast<double>(steps.size()) / seconds : 0;
    }
    double step_seconds() const { return seconds / static_cast<double>(steps.size()); }
};

}  // namespace nearstep::report
