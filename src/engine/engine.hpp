// The engine: gradients in, parameters out. The optimizer state lies in storage and is
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

#include "base/executor.hpp"
#include "base/fault_point.hpp"
#include "checkpoint/checkpoint.hpp"
#include "csd/state_commit.hpp"
#include "engine/face/layout.hpp"
#include "engine/face/options.hpp"
#include "engine/placement/devices.hpp"
#include "engine/restart/start.hpp"
#include "engine/route/clipping.hpp"
#include "engine/route/gpu_traffic.hpp"
#include "engine/route/gpu_transport.hpp"
#include "engine/route/gradient_route.hpp"
#include "engine/route/held_gradients.hpp"
#include "engine/route/loss_scale.hpp"
#include "engine/route/parameter_vector.hpp"
#include "engine/route/scalar_sets.hpp"
#include "engine/state/other_layout.hpp"
#include "engine/state/parameter_reader.hpp"
#include "feed/block_parts.hpp"
#include "link/clock.hpp"
#include "link/node_links.hpp"
#include "memory/buffer.hpp"
#include "memory/gpu.hpp"
#include "mpi/communicator.hpp"
#include "mpi/topology.hpp"
#include "offload/step_pipeline.hpp"
#include "store/lineage.hpp"
#include "store/manifest.hpp"
#include "store/storage.hpp"
#include "trace/run_facts.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace nearstep::engine {

// One per rank, made by Run::open(). Calls are collective and come from the thread that calls MPI,
// unless stated otherwise. Waiting for a lost rank ends after exchange.timeout_s, or ten times that
// where ranks may have different amounts of work. Calls throw ConfigError, on all ranks alike, for
// what the user can fix, and IoError for what may be temporary.
class Engine {
public:
    // Writes start values for the elements from `first` on. Called by several threads at once.
    using Fill = std::function<void(std::size_t first, std::span<float> masters)>;

    // Opens and locks the state files without changing them.
    Engine(const mpi::Communicator& world, const Start& start, const Layout& layout,
           Identity identity, const EngineOptions& options);
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;
    // Not collective. Finishes an accepted update, which waits for other ranks as all calls do, and
    // cancels any other. Committed state stays intact.
    ~Engine() = default;

    StateTransfer first_transfer() const;

    // The parameter vector in layout.dtype, in host memory, in whole tiles. Blocks are final once
    // they were awaited. With ParameterHome::state it takes memory only where the client writes.
    // Not collective.
    std::span<const std::byte> parameters() const { return vector_.span(); }
    // With ParameterHome::state: reads these parameters, which were awaited, from storage. The
    // range and `to` are whole pages of csd::Device::kReadElems elements. Any thread may call.
    // Throws IoError.
    void read_parameters(shard::ElementRange range, std::span<std::byte> to) const {
        reader_->read(range, to);
    }
    // Gives back the vector's memory of whole pages in the range. Any thread may call.
    void drop_parameters(shard::ElementRange range);
    // Ends a step whose update backward may have begun: on return this rank's own parameters are
    // those of the step before. Throws IoError if its state cannot be read. Only
    // release_parameters() and the destructor may follow. Not collective.
    void abandon_step();
    // Gives away the memory of parameters(), for a client that reads it after the engine's end.
    // Only the destructor may follow. Not collective.
    memory::Buffer release_parameters() { return std::move(vector_); }
    // The ranks that copy blocks to GPUs with this one. Not collective; valid as long as the
    // engine.
    feed::JointCopy joint_copy() { return gpu_transport_->joint(); }

    // Traffic is counted from here on if no step is under way.
    void begin_forward();
    // On return the elements `now`, which the block reads, are here and final: from the last update
    // or the start values. `later`: read by the rest of the pass, and kept if it is here.
    void await_parameters(std::size_t block, std::span<const shard::ElementRange> now,
                          std::span<const shard::ElementRange> later);
    // Blocks after `block` that were not awaited in this pass and lie before the returned one are
    // already final, until the pass ends. Not collective.
    std::size_t final_end(std::size_t block) const;
    // Brings all parameters. For use outside steps, where ranks pass different numbers of blocks.
    void hold_parameters();
    // Parameters of other ranks may be dropped.
    void end_pass();

    // For a client that knows long before begin_backward() that a step follows, because it adds up
    // the gradients of several passes: what storage holds may be read meanwhile. The previous step
    // must be finished and committed. Not collective; has no effect on results.
    void expect_backward();
    // The previous step must be finished and committed.
    void begin_backward(const Step& step);
    // Where to write this rank's gradient of the block: fp32, times loss_scale(). In GPU memory, in
    // the order of EngineOptions::gradient_stream, if trace::RunFacts::encodes_on_gpu. Valid until
    // the block is put. Not collective.
    std::span<float> gradient_space(std::size_t block);
    // Adds a micro-batch's fp32 gradient of the block, in fp32. Replaces gradient_space() and may
    // be called repeatedly. `gradient` is in host memory or, if trace::RunFacts::encodes_on_gpu, in
    // GPU memory, where it is read in the order of EngineOptions::gradient_stream. Not collective.
    void add_gradient(std::size_t block, std::span<const float> gradient);
    // Each block once, in an order of the rank's choice: see puts_in_any_order. Last block first is
    // fastest and needs no memory for waiting blocks. The bits do not depend on the order.
    void put_gradient(std::size_t block);
    // Call after all blocks were put.
    GradientFacts end_gradients(const StepEnd& end = {});
    // Begins the step's update if backward did not. In modes without overlap the update is over on
    // return.
    void update();

    // True from update() to finish(). finish() must come before the next begin_backward() and
    // before all collective calls below. Not collective.
    bool is_under_way() const { return pipeline_->stage() == offload::Stage::ending; }
    UpdateReport finish();
    // What the client has with the step that finish() ended, beside the state; empty: nothing. With
    // csd.durability "step" it survives any crash, and the commit that comes next names it. Nothing
    // is written if it is as before.
    void keep_program(std::span<const std::byte> bytes);
    // On return all steps done survive any crash, with csd.durability "step".
    void commit();
    // What was kept with the step that the run goes on from. Not collective.
    std::span<const std::byte> kept_program() const { return program_.bytes; }

    // Changes fp32 masters between two steps. `change` gets those of all elements of this rank's
    // devices, from element `first` on, by several threads at once; padding lies behind the last
    // element. All state is read and written once, as a new generation of the same step, so that a
    // crash leaves one or the other. parameters() has the rounded masters on return.
    using Change = std::function<void(std::size_t first, std::span<float> masters)>;
    void change_masters(const Change& change);
    // Shows the state of this rank's devices that has elements of the range, subgroup by subgroup,
    // between two steps. `see` gets arrays of the elements from `first` on. Not collective.
    using See =
        std::function<void(std::size_t first, std::span<const float> masters,
                           std::span<const float> moments1, std::span<const float> moments2)>;
    void see_state(shard::ElementRange range, const See& see);
    // Updates that each tensor has had. Not collective.
    std::vector<std::int64_t> updates() const;

    // Not collective.
    std::int64_t steps_done() const { return steps_done_; }
    store::Commit position() const;                            // that commit() lists
    double loss_scale() const { return loss_scale_.value(); }  // of the next step
    double waited_seconds() const {
        return pipeline_->waited_seconds();
    }  // total wait of this rank for updates
    double commit_seconds() const { return commit_seconds_; }  // total for commits, hidden or not
    const trace::RunFacts& facts() const { return facts_; }
    const store::Lineage& line() const { return line_; }  // the line of the current steps

    // The folder that save(folder) writes to: another one in `folder` if that is another run's.
    // Makes and claims it. Collective.
    std::string claim_checkpoint_folder(const std::string& folder);
    // Writes and publishes a checkpoint in that folder, with what the client of this rank has
    // beside the state. Returns the path of its index.
    std::string save(const std::string& folder, std::span<const std::byte> program = {});
    // Estimates it by writing a part of the state to a temporary file in `folder`.
    CheckpointTime expect_checkpoint(const std::string& folder);
    // XXH3 over the tiles' XXH3 digests (little-endian, in tile order) of the fp32 masters without
    // padding. Independent of layout. Throws Error if copies of the state differ.
    std::uint64_t masters_digest();

    // Bytes written to each of facts().devices so far, ordered by rank, then device.
    std::vector<std::uint64_t> written_bytes() const;
    // Bytes that each rank sent to other nodes in all steps, as gradients and parameters.
    std::vector<std::uint64_t> network_sent_bytes() const;
    // The largest parameter vector of any rank now. A vector shared in a node counts in full.
    std::size_t vector_bytes() const;

private:
    friend class Run;

    // --- A run's begin, in src/engine/restart/engine_begin.cpp ---

    // Does what was decided, except that a fresh start has no values yet. If it throws, what was
    // durable before still is.
    BeginReport begin(const Start& start);
    // Makes the folders and state files that are not there, and locks them. Collective. The second
    // one throws as check_unchanged(), and has then made nothing.
    void claim_files();
    void claim_files(const Found& found);
    // Removes the folders and files that this start has made, since it is refused. Collective.
    void withdraw();
    // After the begin() of a fresh start: writes start values of all parameters as generation 0, or
    // what the client carries over from another state.
    void fill(const Start& start, const Fill& fill, const Carried* carried);
    void resume(const Start& start, BeginReport& begun);
    void load(const Start& start, BeginReport& begun);

    // Runs when all manifests name the new run and nothing is emptied yet; may be empty.
    using Claimed = std::function<void()>;

    // Empties the state files, which have space for all state from here on.
    void start_anew(const Claimed& claimed);
    // Empties the state files and fills them from the decision's checkpoint of the same model,
    // whatever its layout. If that fails while another state is kept, the files are removed again.
    void restore(const Decision& decision);
    // Reads and verifies the part of a checkpoint that this rank needs. Changes nothing.
    void verify(const std::string& index_path);
    // Continues from the state files at the decision's commit of that number, which every rank
    // lists. Reads and verifies
    // everything. If data is damaged, returns a sentence and changes nothing.
    std::optional<std::string> restore_state(const Start& start, std::size_t commit);
    // Fills the state files from those of another layout that hold that commit. Returns a sentence
    // if those are damaged. If it throws, the new files are removed again.
    std::optional<std::string> restore_from(const Start& start, std::size_t commit);
    // Removes the files that this engine should have filled. The engine is unusable afterwards.
    void remove_state_files();
    // For a csd.durability other than "step": the manifests list no steps from here on, because the
    // next step will not be durable. Steps listed before must be in a checkpoint or given up.
    void forget_commits();

    void make_groups();
    std::vector<std::unique_ptr<csd::Device>> own_devices(bool has_gpu, bool is_pinned);
    void make_pipeline();
    void make_facts();
    // Parameters of other ranks are here only while they are needed.
    bool computes() const {
        return world_.rank() < config::computing_ranks(settings_, world_.size());
    }
    bool has_parts() const { return kind_ == offload::VectorKind::parts; }
    void make_reader();
    void go_on_from(std::int64_t generation);
    bool must_guess() const;
    std::optional<double> early_factor() const;
    double factor() const;
    void judge_guess();
    bool waits_for_all_gradients() const;
    void put_complete_gradients();
    void send_gradient(std::size_t block);
    void read_ahead();
    void begin_update(double factor);
    void deliver_to(csd::GpuTensors* tensors);
    void begin_right_update();
    void leave_out(const std::vector<std::size_t>& skipped);
    void use_scalars();
    bool takes_place() const { return gradients_.is_finite && !gradients_.is_given_up; }
    void skip_update();
    void load_last_parameters();
    void count_from_here();
    void finish_step();
    void keep_norm(double norm) { last_norm_ = options_.clips_by_last_norm ? norm : 0; }
    void harm_gradient(std::span<float> gradient);
    void wait_for_update();
    void prepare_commit();
    void save_residual(checkpoint::RankFileWriter& writer);
    // Throws ConfigError if the checkpoint is damaged or not of this parameter vector.
    std::unique_ptr<checkpoint::Reader> open_checkpoint(const std::string& index_path) const;
    // Whether the model has tensors that missed these updates.
    bool fits(const store::MissedUpdates& missed) const {
        return missed.size() <= layout_.tensors.size();
    }
    void restore_residual(checkpoint::Reader& reader);
    store::Manifest manifest() const;
    std::string draw_id() const;
    void name_state(const std::string& id);
    void choose_line(const Decision& decision, const Writer& writer, std::int64_t step);
    void expect_room() const;
    void empty_state_files(const std::string& replaced, const Claimed& claimed = {});
    store::ProgramState program_with(const Start& start, std::size_t commit) const;
    store::ProgramState program_with(checkpoint::Reader& reader) const;
    void list_what_was_filled(store::ProgramState program);
    void replace_runs(const Found& found);
    void fill_from(checkpoint::Reader& reader);
    std::optional<std::string> fill_from(OtherLayout& old, std::int64_t generation);
    // Calls `work` for each subgroup of this rank with memory for its state. The pool's threads
    // handle several at once. Rethrows the first error.
    using StateWork =
        std::function<void(const offload::OwnedSubgroup& of, const csd::StateArrays& state)>;
    void visit_states(Executor& pool, const StateWork& work);
    // The same, then loads the state into the vector. Measures `move`; `before` may be empty.
    void move_state(const StateWork& before, const StateWork& move);
    void go_on_at(const store::Commit& position, const Writer& writer);
    checkpoint::Description describe() const;
    checkpoint::Description share_records(const store::ProgramRecord& kept,
                                          std::span<checkpoint::RankFileRecord> records) const;
    bool is_in_first_copy() const { return owners_.copy_of(world_.rank()) == 0; }
    void load_into_vector(const offload::OwnedSubgroup& of, const csd::StateArrays& state);

    const mpi::Communicator& world_;
    Placed settings_;
    Layout layout_;
    Identity identity_;
    EngineOptions options_;
    int set_;  // of the state files' names: Decision::set
    FaultPoints faults_;
    trace::Timeline* timeline_;
    std::unique_ptr<store::Storage> storage_;  // null: the operating system's
    link::Clock clock_;
    std::unique_ptr<link::NodeLinks> links_;  // null: no rate limits
    mpi::Topology nodes_;
    shard::Ownership owners_;
    const shard::Replica& copy_;  // this rank's
    GradientRoute route_;
    ParameterGroups parameters_;
    std::optional<GpuTraffic> gpu_traffic_;
    trace::Traffic traffic_;
    std::uint64_t network_sent_bytes_ = 0;  // by this rank, in steps
    offload::VectorKind kind_ = {};
    memory::Buffer vector_;       // the padded parameter vector
    memory::PinnedRange pinned_;  // pins the vector for a GPU
    std::optional<GpuTransport> gpu_transport_;
    store::ProgramState program_;        // that the run goes on with
    std::int64_t kept_step_ = 0;         // of the last keep_program()
    csd::StateCommit log_;               // used by the pipeline's updates
    Executor pool_{pool_threads() - 1};  // used by the pipeline
    // Used by the devices. It leaves the CPU to the threads that compute or feed a GPU.
    Executor beside_{pool_threads(), Executor::Priority::background};
    std::unique_ptr<offload::StepPipeline> pipeline_;
    std::optional<ParameterReader> reader_;  // with ParameterHome::state
    std::optional<HeldGradients> held_;
    trace::RunFacts facts_;
    // The members below describe the current step.
    Step step_;
    GradientFacts gradients_;
    double begun_factor_ = 1;  // of the update, if it has begun
    ClipGuess guess_;
    // Counters that were already reported, and traffic of parameters that the next step brought
    // before the step under way ended.
    trace::TrafficSnapshot counted_;
    trace::TrafficSnapshot brought_;
    codec::DeltaTally counted_deltas_;
    double commit_seconds_ = 0;
    store::Lineage line_;
    std::string state_;                     // see store::Manifest::state
    std::string replaced_;                  // see store::Manifest::replaces
    std::set<std::string> replaced_runs_;   // whose manifests this start has replaced
    std::vector<std::string> new_folders_;  // made by claim_files(), after those in them
    std::vector<std::string> places_;       // see store::Manifest::places
    std::string threads_;                   // see store::Manifest::threads
    std::string threads_before_;            // of the steps that were resumed
    StateTransfer moved_;                   // by this rank, see first_transfer()
    LossScale loss_scale_;
    ScalarSets scalar_sets_;
    // With clips_by_last_norm: norm of the last step that was not skipped, without loss scale; 0:
    // none.
    double last_norm_ = 0;
    std::int64_t steps_done_ = 0;
    Executor alone_{0};  // the caller's thread: of files that no other may use
};

}  // namespace nearstep::engine
