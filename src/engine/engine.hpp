// The engine's interface: gradients in, parameters out. The optimizer state lies in storage and is
// updated near it, and every step can survive a crash. The engine knows tensors but no models or
// text. It handles no signals, prints nothing and never exits; errors are exceptions.
//
// Run::open() makes it. A step, on every rank alike:
//
//     engine.begin_forward();
//     for each block:  engine.await_parameters(block, ...);  compute
//     engine.end_pass();
//     engine.finish();  engine.commit();               // the previous step, if still under way
//     engine.begin_backward(step);
//     for each block, last first:  engine.await_parameters(block, ...);
//                                  compute into engine.gradient_space(block);
//                                  engine.put_gradient(block);
//     engine.end_pass();
//     engine.end_gradients();  engine.update();        // overlaps the next forward
#pragma once

#include "base/statistics.hpp"
#include "codec/delta.hpp"
#include "config/engine_settings.hpp"
#include "engine/layout.hpp"
#include "engine/placement/placed.hpp"
#include "engine/restart/wish.hpp"
#include "feed/block_parts.hpp"
#include "memory/buffer.hpp"
#include "mpi/communicator.hpp"
#include "store/lineage.hpp"
#include "trace/run_facts.hpp"
#include "trace/timeline.hpp"
#include "trace/traffic.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

struct CUstream_st;

namespace nearstep::engine {

struct EngineOptions {
    std::optional<int> gpu = std::nullopt;  // this rank's GPU; none: the CPU
    // The cudaStream_t in whose order gradient_space() is used; it outlives the engine. Null: the
    // GPU's default stream. In a stream of high priority gradients leave while backward, which was
    // queued long before, goes on.
    CUstream_st* gradient_stream = nullptr;
    // Whether free memory of the GPU may hold state that is read ahead.
    bool fills_gpu = true;
    std::size_t gpu_work_bytes = 0;  // that the client's network will take of it; 0: unknown
    Grant grant = {};
    ParameterHome parameters = ParameterHome::vector;
    bool needs_shared_folder = false;  // for checkpoints, on all hosts: checked by Run::open()
    StepsOf steps_of = {};             // of the client's checkpoints; empty: none is unfinished
    bool clips_by_last_norm = false;   // clips by the norm of the previous step
    // Gradients come in any order. Matters only where parameters are spread over ranks: then all
    // gradients wait for end_gradients(), because ranks also meet in await_parameters().
    bool puts_in_any_order = false;
    LossScaleSettings loss_scale = {};
    std::string fault_plan = {};          // for tests: see FaultPoints
    trace::Timeline* timeline = nullptr;  // outlives the engine; null: no tracing
};

// How a step uses its gradients.
struct Step {
    std::vector<Hyper> groups = {};  // indexed by Tensor::group
    double clip_norm = 0;            // 0: no clipping
    // Indices of tensors without a gradient on any rank: masters and moments do not change, and
    // Adam's bias correction does not count the update.
    std::vector<std::size_t> skipped = {};
};

// What is known of a step only when all its gradients were put. The same on all ranks.
struct StepEnd {
    // Replaces Step::skipped. An update that backward began otherwise is repeated.
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
    trace::TrafficSnapshot traffic = {};
    codec::DeltaTally deltas = {};  // zeros without gather.codec = "delta"
};

struct CheckpointTime {
    double seconds = 0;
    double bytes = 0;         // of all ranks
    double probed_bytes = 0;  // read and written to measure this
};

// What the run's begin wrote or read in state files: bytes of all ranks, and the seconds of the
// slowest rank in which a transfer was under way. Zeros if the state came from elsewhere.
struct StateTransfer {
    double bytes = 0;
    double seconds = 0;
};

struct BeginReport {
    std::vector<std::string> lines = {};  // to tell the user
    std::int64_t checkpoint_step = -1;    // of the newest checkpoint in the folder; -1: none
};

// One per rank, made by Run::open(). Calls are collective and come from the thread that calls MPI,
// unless stated otherwise. Waiting for a lost rank ends after exchange.timeout_s, or ten times that
// where ranks may have different amounts of work. Calls throw ConfigError, on all
// ranks alike, for what the user can fix, and IoError for what may be temporary.
class Engine {
public:
    // Writes start values for the elements from `first` on. Called by several threads at once.
    using Fill = std::function<void(std::size_t first, std::span<float> masters)>;

    Engine() = default;
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;
    // Not collective. Finishes an accepted update, which waits for other ranks as all calls do, and
    // cancels any other. Committed state stays intact.
    virtual ~Engine() = default;

    virtual StateTransfer first_transfer() const = 0;

    // The parameter vector in layout.dtype, in host memory, in whole tiles. Blocks are final once
    // they were awaited. With ParameterHome::state it takes memory only where the client writes.
    // Not collective.
    virtual std::span<const std::byte> parameters() const = 0;
    // With ParameterHome::state: reads these parameters, which were awaited, from storage. The
    // range and `to` are whole pages of csd::Device::kReadElems elements. Any thread may call.
    // Throws IoError.
    virtual void read_parameters(shard::ElementRange range, std::span<std::byte> to) const = 0;
    // Gives back the vector's memory of whole pages in the range. Any thread may call.
    virtual void drop_parameters(shard::ElementRange range) = 0;
    // Ends a step whose update backward may have begun: on return this rank's own parameters are
    // those of the step before. Throws IoError if its state cannot be read. Only
    // release_parameters() and the destructor may follow. Not collective.
    virtual void abandon_step() = 0;
    // Gives away the memory of parameters(), for a client that reads it after the engine's end.
    // Only the destructor may follow. Not collective.
    virtual memory::Buffer release_parameters() = 0;
    // The ranks that copy blocks to GPUs with this one. Not collective; valid as long as the
    // engine.
    virtual feed::JointCopy joint_copy() = 0;

    // Traffic is counted from here on if no step is under way.
    virtual void begin_forward() = 0;
    // On return the elements `now`, which the block reads, are here and final: from the last update
    // or the start values. `later`: read by the rest of the pass, and kept if it is here.
    virtual void await_parameters(std::size_t block, std::span<const shard::ElementRange> now,
                                  std::span<const shard::ElementRange> later) = 0;
    // Blocks after `block` that were not awaited in this pass and lie before the returned one are
    // already final, until the pass ends. Not collective.
    virtual std::size_t final_end(std::size_t block) const = 0;
    // Brings all parameters. For use outside steps, where ranks pass different numbers of blocks.
    virtual void hold_parameters() = 0;
    // Parameters of other ranks may be dropped.
    virtual void end_pass() = 0;

    // For a client that knows long before begin_backward() that a step follows, because it adds up
    // the gradients of several passes: what storage holds may be read meanwhile. The previous step
    // must be finished and committed. Not collective; has no effect on results.
    virtual void expect_backward() = 0;
    // The previous step must be finished and committed.
    virtual void begin_backward(const Step& step) = 0;
    // Where to write this rank's gradient of the block: fp32, times loss_scale(). In GPU memory, in
    // the order of EngineOptions::gradient_stream, if trace::RunFacts::encodes_on_gpu. Valid until
    // the block is put. Not collective.
    virtual std::span<float> gradient_space(std::size_t block) = 0;
    // Adds a micro-batch's fp32 gradient of the block, in fp32. Replaces gradient_space() and may
    // be called repeatedly. `gradient` is in host memory or, if trace::RunFacts::encodes_on_gpu, in
    // GPU memory, where it is read in the order of EngineOptions::gradient_stream. Not collective.
    virtual void add_gradient(std::size_t block, std::span<const float> gradient) = 0;
    // Each block once, in an order of the rank's choice: see puts_in_any_order. Last block first is
    // fastest and needs no memory for waiting blocks. The bits do not depend on the order.
    virtual void put_gradient(std::size_t block) = 0;
    // Call after all blocks were put.
    virtual GradientFacts end_gradients(const StepEnd& end) = 0;
    GradientFacts end_gradients() { return end_gradients({}); }
    // Begins the step's update if backward did not. In modes without overlap the update is over on
    // return.
    virtual void update() = 0;

    // True from update() to finish(). finish() must come before the next begin_backward() and
    // before all collective calls below. Not collective.
    virtual bool is_under_way() const = 0;
    virtual UpdateReport finish() = 0;
    // On return all steps done survive any crash, with csd.durability "step".
    virtual void commit() = 0;

    // Changes fp32 masters between two steps. `change` gets those of all elements of this rank's
    // devices, from element `first` on, by several threads at once; padding lies behind the last
    // element. All state is read and written once, as a new generation of the same step, so that a
    // crash leaves one or the other. parameters() has the rounded masters on return.
    using Change = std::function<void(std::size_t first, std::span<float> masters)>;
    virtual void change_masters(const Change& change) = 0;
    // Shows the state of this rank's devices, subgroup by subgroup, between two steps. `see` gets
    // arrays of the elements from `first` on. Not collective.
    using See =
        std::function<void(std::size_t first, std::span<const float> masters,
                           std::span<const float> moments1, std::span<const float> moments2)>;
    virtual void see_state(const See& see) = 0;
    // Updates that each tensor has had. Not collective.
    virtual std::vector<std::int64_t> updates() const = 0;

    // Not collective.
    virtual std::int64_t steps_done() const = 0;
    virtual double loss_scale() const = 0;      // of the next step
    virtual double waited_seconds() const = 0;  // total wait of this rank for updates
    virtual double commit_seconds() const = 0;  // total for commits, hidden or not
    virtual const trace::RunFacts& facts() const = 0;
    virtual const store::Lineage& line() const = 0;  // the line of the current steps

    // The folder that save(folder) writes to: another one in `folder` if that is another run's.
    // Makes and claims it. Collective.
    virtual std::string claim_checkpoint_folder(const std::string& folder) = 0;
    // Writes and publishes a checkpoint in that folder. Returns the path of its index.
    virtual std::string save(const std::string& folder) = 0;
    // Estimates it by writing a part of the state to a temporary file in `folder`.
    virtual CheckpointTime expect_checkpoint(const std::string& folder) = 0;
    // XXH3 over the tiles' XXH3 digests (little-endian, in tile order) of the fp32 masters without
    // padding. Independent of layout. Throws Error if copies of the state differ.
    virtual std::uint64_t masters_digest() = 0;

    // Bytes written to each of facts().devices so far, ordered by rank, then device.
    virtual std::vector<std::uint64_t> written_bytes() const = 0;
    // Bytes that each rank sent to other nodes in all steps, as gradients and parameters.
    virtual std::vector<std::uint64_t> network_sent_bytes() const = 0;
    // The largest parameter vector of any rank now. A vector shared in a node counts in full.
    virtual std::size_t vector_bytes() const = 0;
};

}  // namespace nearstep::engine
