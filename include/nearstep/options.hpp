// The values that the engine's client gives for a run and a step, and those that the engine
// reports.
#pragma once

#include "base/statistics.hpp"
#include "codec/delta_tally.hpp"
#include "nearstep/layout.hpp"
#include "nearstep/start_request.hpp"
#include "trace/run_facts.hpp"
#include "trace/traffic.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

struct CUstream_st;

namespace nearstep::csd {
class GpuTensors;
}

namespace nearstep::trace {
class Timeline;
}

namespace nearstep::engine {

// Whether a client keeps bytes with each step beside the state: see Run::keep_program().
enum class ProgramUse {
    none,      // nothing
    optional,  // something that a start may go on without
    needed     // something that a start brings back, or else refuses the step
};

// Devices that a batch system or the client grants out of csd.path.
struct Grant {
    // The positions in csd.path of this host's devices (NEARSTEP_CSDS). Empty on all ranks: what
    // Slurm says of rank 0's job decides.
    std::string positions = {};
    bool divides_folders = false;  // the ranks of a node divide its folders, without csd.per_rank
};

// Where the parameters lie that a client computes with: all in the parameter vector, or in the
// state alone, from which Run::read_parameters() reads them. That takes one rank, and neither
// cards nor deltas.
enum class ParameterHome { vector, state };

struct EngineOptions {
    // Processes of this host that have an engine of one rank each, and share its memory.
    int processes_beside = 1;
    std::optional<int> gpu = std::nullopt;  // this rank's GPU; none: the CPU
    // The cudaStream_t in whose order gradients are read; it outlives the engine. Null: the
    // GPU's default stream. In a stream of high priority gradients leave while backward, which was
    // queued long before, goes on.
    CUstream_st* gradient_stream = nullptr;
    // Whether free memory of the GPU may hold state that is read ahead.
    bool fills_gpu = true;
    std::size_t gpu_work_bytes = 0;  // that the client's network will take of it; 0: unknown
    Grant grant = {};
    ParameterHome parameters = ParameterHome::vector;
    bool may_go_back = false;  // Run::keep_to() may name the step before the newest
    // Tensors in GPU memory of a client on one rank. From Run::update() on, the GPU may write
    // new parameters to them instead of to Run::parameters(). They outlive the engine; null: all
    // new parameters go to Run::parameters().
    csd::GpuTensors* tensors = nullptr;
    ProgramUse program = ProgramUse::none;
    bool needs_shared_folder = false;  // for checkpoints, on all hosts: checked by Run::open()
    StepsOf steps_of = {};             // of the client's checkpoints; empty: none is unfinished
    bool clips_by_last_norm = false;   // clips by the norm of the previous step
    // All gradients come when backward is over. The update begins with the first blocks then, which
    // the next forward needs first, and may write to `tensors`; it does not begin in backward.
    bool puts_at_once = false;
    LossScaleSettings loss_scale = {};
    std::string fault_plan = {};          // for tests: see FaultPoints
    trace::Timeline* timeline = nullptr;  // outlives the engine; null: no tracing
};

// How a step uses its gradients.
struct StepSettings {
    std::vector<Hyper> groups = {};  // indexed by Tensor::group
    double clip_norm = 0;            // 0: no clipping
    // Indices of tensors without a gradient on any rank: masters and moments do not change, and
    // Adam's bias correction does not count the update.
    std::vector<std::size_t> skipped = {};
};

// Facts about a step that are known when all its gradients were put. All ranks have the same.
struct StepEnd {
    // Replaces StepSettings::skipped. An update that backward began otherwise is repeated.
    std::optional<std::vector<std::size_t>> skipped = std::nullopt;
    // The step does not take place: state, steps_done() and loss scale stay as they are.
    bool is_given_up = false;
};

// Describes the decoded sum over all ranks, without loss scale. The same on all ranks.
struct GradientFacts {
    double norm = 0;
    bool is_finite = true;     // if false, nothing is updated
    bool is_given_up = false;  // likewise: see StepEnd
    trace::Guess guess = trace::Guess::none;
};

// A step whose update has ended: seconds of the slowest rank, traffic of all ranks.
struct UpdateReport {
    double update_s = 0;  // includes bringing the parameters in
    double hidden_s = 0;  // part of the update and its flush that is hidden: the least of all ranks
    Slowest devices = {};  // the rank whose devices updated their state last
    Slowest drives = {};   // the rank whose drives moved state slowest beside their first steps
    // The node whose parameters came late to others, though those of most ranks had come, and the
    // node that waited longest for parameters, by seconds of waiting: its first rank.
    Slowest sender = {};
    Slowest receiver = {};
    // The rank whose GPU the others waited for in NCCL, and the least seconds of a rank there.
    Slowest nccl = {};
    double nccl_s = 0;
    double network_s = 0;  // from the end of the slowest devices until all parameters had come
    trace::TrafficSnapshot traffic = {};
    codec::DeltaTally deltas = {};  // zeros without gather.codec = "delta"
};

struct CheckpointTime {
    double seconds = 0;
    double bytes = 0;         // of all ranks
    double probed_bytes = 0;  // read and written to measure this
};

// State that the begin of the run wrote to state files or read from them: bytes of all ranks, and
// the seconds of the slowest rank in which a transfer was under way. Zeros if the state came from
// elsewhere.
struct StateTransfer {
    double bytes = 0;
    double seconds = 0;
};

// Writes start values of the elements from `first` on. Called by several threads at once.
using Fill = std::function<void(std::size_t first, std::span<float> masters)>;

// Changes masters from element `first` on. Called by several threads at once; padding lies behind
// the last element.
using MasterChange = std::function<void(std::size_t first, std::span<float> masters)>;

// Sees arrays of the state, of the elements from `first` on.
using StateSight =
    std::function<void(std::size_t first, std::span<const float> masters,
                       std::span<const float> moments1, std::span<const float> moments2)>;

struct BeginReport {
    std::vector<std::string> lines = {};  // to tell the user
    std::int64_t checkpoint_step = -1;    // of the newest checkpoint in the folder; -1: none
};

}  // namespace nearstep::engine
