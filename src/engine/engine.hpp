// The engine's face: gradients in, parameters out; the optimizer state lies in storage and is
// updated near it, every step can outlive a crash. It knows tensors, not models or text, and owns
// nothing of the process: no signals, no output, no exit; errors are exceptions.
//
// A step, on every rank alike:
//
//     engine.begin_forward();
//     for each block:  engine.await_parameters(block, ...);  compute
//     engine.end_pass();
//     engine.finish();  engine.commit();               // of the step before, if one is under way
//     engine.begin_backward(step);
//     for each block, last first:  engine.await_parameters(block, ...);
//                                  compute into engine.gradient_space(block);
//                                  engine.put_gradient(block);
//     engine.end_pass();
//     engine.end_gradients();  engine.update();        // which goes on under the next forward
#pragma once

#include "codec/delta.hpp"
#include "config/engine_settings.hpp"
#include "engine/layout.hpp"
#include "engine/start.hpp"
#include "feed/block_parts.hpp"
#include "mpi/communicator.hpp"
#include "store/lineage.hpp"
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
    std::optional<int> gpu = std::nullopt;  // that this rank computes with; none: the CPU
    // The cudaStream_t in whose order gradient_space() is written and read; it outlives the engine.
    // Null: the GPU's default stream. With one of high priority gradients leave while backward,
    // which was queued long before, goes on.
    CUstream_st* gradient_stream = nullptr;
    int set = 0;                      // of the state files' names: Decision::set
    bool clips_by_last_norm = false;  // Step::clip_norm is of the norm of the step before
    // Gradients come in any order. It has to be said only where parameters are spread over ranks:
    // there all gradients wait for end_gradients(), since ranks meet in await_parameters(), too.
    bool puts_in_any_order = false;
    LossScaleSettings loss_scale = {};
    std::string fault_plan = {};          // for tests: what FaultPoints takes
    trace::Timeline* timeline = nullptr;  // outlives the engine; null: nothing is traced
};

// What a step does with its gradients.
struct Step {
    std::vector<Hyper> groups = {};  // by Tensor::group, of each that there is
    double clip_norm = 0;            // 0: no clipping
    // No rank has a gradient for these of layout.tensors: masters and moments stay as they are.
    std::vector<std::size_t> skipped = {};
};

// That a step is neither clipped nor skipped, made when backward begins: then its update begins,
// too. A wrong one is found by the norm, the update is done again, and the bits are the same.
enum class Guess { none, right, wrong };

// Of the decoded sum over all ranks, without loss scale; the same on all.
struct GradientFacts {
    double norm = 0;
    bool is_finite = true;  // else nothing is updated
    Guess guess = Guess::none;
};

// Of a step whose update is over: seconds of this rank's slowest peer, traffic of all ranks.
struct UpdateReport {
    double update_s = 0;  // and parameters in: from the first to the last
    double hidden_s = 0;  // of that and its flush, the least under backward and the next forward
    trace::TrafficSnapshot traffic = {};
    codec::DeltaTally deltas = {};  // zeros without gather.codec = "delta"
};

// How the ranks' state and gradients lie and travel; the same on all ranks but for `io` and `gpu`.
struct EngineFacts {
    int nodes = 1;
    bool has_equal_nodes = true;  // as many ranks on each
    int copies = 1;               // of the optimizer state
    int devices = 0;              // of all ranks; in mode base the plain ones that state lies on
    double payload_bytes_per_parameter = 0;  // of a gradient that is sent
    double handed_bytes_per_parameter = 0;   // of all that a device is handed
    bool has_dense_sums = false;
    bool encodes_on_gpu = false;           // this rank
    std::size_t gradient_bytes = 0;        // of this rank's GPU, that gradients take
    std::string transport = {};            // "nccl", "mpi" or empty: see GradientGpu
    std::string payload_transport = {};    // likewise
    std::string parameter_transport = {};  // likewise: see ParameterGpu
    std::string io = {};                   // how this rank's first device moves its state
    std::vector<std::string> lines = {};   // how gradients and parameters travel, as sentences
};

struct CheckpointTime {
    double seconds = 0;
    double bytes = 0;         // of all ranks
    double probed_bytes = 0;  // of these, what was read and written to know
};

// One per rank. All calls are collective, from the thread that calls MPI, unless they say
// otherwise; who waits for a rank that is gone waits for exchange.timeout_s at most. They throw
// ConfigError, on all ranks alike, for what the user can mend, IoError for what may pass.
class Engine {
public:
    // Start values of the elements from `first` on. Any thread, several at once.
    using Fill = std::function<void(std::size_t first, std::span<float> masters)>;

    // Opens and locks the state files and leaves their content. start() or begin() must follow.
    // `world` outlives the engine.
    static std::unique_ptr<Engine> make(const mpi::Communicator& world,
                                        const config::EngineSettings& settings,
                                        const Layout& layout, const Identity& identity,
                                        const EngineOptions& options);

    Engine() = default;
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;
    // Not collective; an update under way is given up, and what was committed is whole.
    virtual ~Engine() = default;

    // Empties the state files and writes start values, generation 0.
    virtual void start(const Fill& fill) = 0;
    // Does what was decided; what was durable before still is if it throws.
    virtual Begun begin(const Start& start, const Fill& fill) = 0;

    // The parameter vector, in layout.dtype, in host memory; tiles are whole. Of its blocks those
    // are final that were awaited. Not collective.
    virtual std::span<const std::byte> parameters() const = 0;
    // Who brings blocks to GPUs with this rank. Not collective; valid as long as the engine.
    virtual feed::JointCopy joint_copy() = 0;

    // Counts traffic from here on, if no step is under way.
    virtual void begin_forward() = 0;
    // On return the elements `now`, which the block reads, are here and final: those of the last
    // update, or of the start. `later`: what the rest of the pass reads; it stays if it is here.
    virtual void await_parameters(std::size_t block, std::span<const shard::ElementRange> now,
                                  std::span<const shard::ElementRange> later) = 0;
    // Of the blocks that were not awaited yet in this pass, and are behind `block`, those before
    // the one that this returns need not be: they are final until the pass ends. Not collective.
    virtual std::size_t final_end(std::size_t block) const = 0;
    // Outside of steps, where ranks pass the blocks unequally often: all parameters are here.
    virtual void hold_parameters() = 0;
    // Parameters of others may go.
    virtual void end_pass() = 0;

    // The step before must be finished and committed.
    virtual void begin_backward(const Step& step) = 0;
    // Where this rank's gradient of the block goes, fp32, times loss_scale(): memory of the GPU, in
    // the order of EngineOptions::gradient_stream, if EngineFacts::encodes_on_gpu. Valid until the
    // block is put. Not collective.
    virtual std::span<float> gradient_space(std::size_t block) = 0;
    // Instead of writing to gradient_space(), any number of times: adds a micro-batch's gradient of
    // the block, in host memory, in fp32. Not collective; not where gradients are on a GPU.
    virtual void add_gradient(std::size_t block, std::span<const float> gradient) = 0;
    // Each block once, in any order, each rank in its own: see puts_in_any_order. The bits are
    // those of last block first, which is the fastest, and takes no memory for blocks that wait.
    virtual void put_gradient(std::size_t block) = 0;
    // All blocks were put.
    virtual GradientFacts end_gradients() = 0;
    // Takes the step as far as its update, which begins, if it did not in backward. In modes that
    // take one step after the other the update is over on return.
    virtual void update() = 0;

    // A step is under way from update() to finish(), which must come before the next
    // begin_backward(), and before all calls below that are collective. Not collective.
    virtual bool is_under_way() const = 0;
    virtual UpdateReport finish() = 0;
    // With csd.durability "step": on return the steps done outlive any crash.
    virtual void commit() = 0;

    // Not collective.
    virtual std::int64_t steps_done() const = 0;
    virtual double loss_scale() const = 0;      // of the next step
    virtual double waited_seconds() const = 0;  // by this rank for updates, in all
    virtual double commit_seconds() const = 0;  // likewise for commits, hidden or not
    virtual const EngineFacts& facts() const = 0;
    virtual const store::Lineage& line() const = 0;  // whose steps are taken

    // Writes and publishes a checkpoint in `folder`; returns its index's path.
    virtual std::string save(const std::string& folder) = 0;
    // By a part of the state that is read and written to a file in `folder`, which does not stay.
    virtual CheckpointTime expect_checkpoint(const std::string& folder) = 0;
    // XXH3 of the tiles' XXH3 digests (little-endian, in tile order) of the fp32 masters without
    // padding: independent of layout. Throws Error if copies of the state differ.
    virtual std::uint64_t masters_digest() = 0;

    // Bytes written to each of facts().devices so far, in the order of ranks and devices.
    virtual std::vector<std::uint64_t> written_bytes() const = 0;
    // What each rank sent to other nodes in all steps, gradients and parameters.
    virtual std::vector<std::uint64_t> network_sent_bytes() const = 0;
    // Most memory that a rank's parameter vector takes now; one that a node shares counts in full.
    virtual std::size_t vector_bytes() const = 0;
};

}  // namespace nearstep::engine
