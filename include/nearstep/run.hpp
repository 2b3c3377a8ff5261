// A run of the engine, on one rank: gradients in, parameters out. The optimizer state lies in
// storage and is updated near it, and every step can survive a crash. The engine knows tensors but
// no models or text. It handles no signals, prints nothing and never exits; errors are exceptions.
//
// On every rank alike:
//
//     engine::Run run = engine::Run::open(world, settings, layout, request, identity, options);
//     run.begin(fill);
//     for each step:
//         run.begin_forward();
//         for each block:  run.await_parameters(block, ...);  compute
//         run.end_pass();
//         run.finish();  run.commit();                  // the previous step, if still under way
//         run.begin_backward(step);
//         for each block, last first:  run.await_parameters(block, ...);
//                                      compute
//                                      run.put_gradient(block, gradient);
//         run.end_pass();
//         run.end_gradients();  run.update();           // overlaps the next forward
#pragma once

#include "config/engine_settings.hpp"
#include "mpi/communicator.hpp"
#include "nearstep/layout.hpp"
#include "nearstep/options.hpp"
#include "nearstep/start_request.hpp"
#include "shard/element_range.hpp"
#include "shard/gradient.hpp"
#include "trace/run_facts.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

// Only parts of nearstep itself have a use for the calls below that name these.
namespace nearstep::feed {
struct JointCopy;
}
namespace nearstep::memory {
class Buffer;
class Stream;
}  // namespace nearstep::memory
namespace nearstep::store {
struct Commit;
struct Lineage;
}  // namespace nearstep::store

namespace nearstep::engine {

struct Carried;
struct PlacedSettings;
struct Start;

// One per rank. Calls are collective and come from the thread that calls MPI, unless stated
// otherwise. Waiting for a lost rank ends after exchange.timeout_s, or ten times that where ranks
// may have different amounts of work. Calls throw ConfigError, on all ranks alike, for what the
// user can fix, and IoError for what may be temporary.
class Run {
public:
    // --- Begin ---

    // Finds what the run begins with, and opens and locks the state files without changing them.
    // `world` outlives the run. Throws ConfigError, on all ranks alike, if another process uses the
    // state files, if foreign files are in the way, or if the request cannot be fulfilled.
    static Run open(const mpi::Communicator& world, const config::EngineSettings& settings,
                    const Layout& layout, const StartRequest& request, const Identity& identity,
                    const EngineOptions& options);

    // Opens what find_start() found.
    static Run open(const mpi::Communicator& world, Start start, const Layout& layout,
                    const Identity& identity, const EngineOptions& options);

    Run(Run&&) noexcept;
    Run& operator=(Run&&) noexcept;
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;
    // Finishes an accepted update, which waits for other ranks as all calls do, and cancels any
    // other. Committed state stays intact. Not collective.
    ~Run();

    // Whether the run continues no existing state, so that begin() needs start values.
    bool begins_anew() const;
    // Does what was decided; `fill` writes start values. Once. If it throws, what was durable
    // before still is; if it refuses (ConfigError), what it made is gone, too.
    BeginReport begin(const Fill& fill);
    // Two calls that do what begin() does. After prepare() the state has its space, and what the
    // user can mend was refused. If begins_anew(), fill() comes next and writes the start values,
    // which may take long.
    BeginReport prepare();
    void fill(const Fill& fill, const Carried* carried = nullptr);

    // The step that begin() goes on from; -1: it begins anew.
    std::int64_t newest_step() const;
    // Before begin(): goes on from the state of an earlier step, where programs that each have a
    // run of one rank meet. Throws ConfigError if that state is not kept.
    void keep_to(std::int64_t step);
    // The checkpoint that begin() loads, or that is as new as the state; empty: none.
    const std::string& found_checkpoint() const;
    // Returns the bytes that the client had kept with the step that the run goes on from.
    std::span<const std::byte> kept_program() const;
    StateTransfer first_transfer() const;
    // Bytes of state that this rank has read or written so far, outside steps. Any thread.
    std::uint64_t transferred_bytes() const;

    // --- The parameter vector ---

    // Returns the parameters in layout.dtype, in host memory, in whole tiles. Blocks are final once
    // they were awaited. With ParameterHome::state it takes memory only where the client writes.
    // Not collective.
    std::span<const std::byte> parameters() const;
    // With ParameterHome::state: reads these parameters, which were awaited, from storage. The
    // range and `to` are whole pages of csd::Device::kReadElems elements. Any thread may call.
    // Throws IoError.
    void read_parameters(shard::ElementRange range, std::span<std::byte> to) const;
    // With ParameterHome::state: whether this process has the parameters in host memory, in the
    // state, and its GPU reads them there, which begins some time after the first update. Then
    // copy_parameters() copies these, which were awaited: to host memory or, in the order of
    // `stream`, to that of its GPU. What is copied while the next update runs is not to be used.
    bool can_copy_parameters() const;
    void copy_parameters(shard::ElementRange range, std::span<std::byte> to,
                         const memory::Stream* stream) const;
    // Gives back the vector's memory of whole pages in the range. Any thread may call.
    void drop_parameters(shard::ElementRange range);
    // Gives away the memory of parameters(), for a client that reads it after the run's end. Only
    // the destructor may follow. Not collective.
    memory::Buffer release_parameters();
    // The ranks that copy blocks to GPUs with this one. Not collective; valid as long as the run.
    feed::JointCopy joint_copy();

    // --- A step ---

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
    void begin_backward(const StepSettings& step);
    // Takes this rank's gradient of the block, times loss_scale(), from host memory or, if
    // trace::RunFacts::encodes_on_gpu, from GPU memory, where it is read in the order of
    // EngineOptions::gradient_stream. Call it once for each block, in an order of the rank's
    // choice. A block is read before the call returns if all later blocks were put, else in the
    // call that puts the last of these. Last block first is fastest. The bits do not depend on the
    // order.
    void put_gradient(std::size_t block, const shard::Gradient& gradient);
    // Puts what was written to gradient_space() of the block; nothing if that was not called.
    void put_gradient(std::size_t block);
    // Lends memory for the block's gradient in fp32, of the GPU if trace::RunFacts::encodes_on_gpu,
    // until the block is put. All later blocks were put. Not collective.
    std::span<float> gradient_space(std::size_t block);
    // With ParameterHome::state, from begin() on: memory of devices whose state lies in memory
    // alone, which the client may use while no gradients are there. In each, the bytes before the
    // end of a block are free from the last step's finish() until put_gradient() of that block. Not
    // collective.
    std::vector<std::span<std::byte>> lent_memory();
    // The ends of blocks in each memory. Known before begin().
    std::vector<std::vector<std::size_t>> lent_ends() const;
    // Call after all blocks were put.
    GradientFacts end_gradients(const StepEnd& end = {});
    // Begins the step's update if backward did not. In modes without overlap the update is over on
    // return.
    void update();

    // True from update() to finish(). finish() must come before the next begin_backward() and
    // before all collective calls below. Not collective.
    bool is_under_way() const;
    UpdateReport finish();
    // Keeps the client's bytes of a step beside the state; empty: none. Call it after the finish()
    // of that step or, if commits_early(), before its update(). With csd.durability "step" it
    // survives any crash, and the commit that comes next names it. Nothing is written if it is as
    // before. Not collective.
    void keep_program(std::int64_t step, std::span<const std::byte> bytes);
    // Whether update() makes the step durable before it writes the state. commit() then has nothing
    // to do after a step that took place. Not collective.
    bool commits_early() const;
    // Makes all steps done survive any crash, with csd.durability "step".
    void commit();
    // Ends a step whose update backward may have begun: on return this rank's own parameters are
    // those of the step before. Throws IoError if its state cannot be read. Only
    // release_parameters() and the destructor may follow. Not collective.
    void abandon_step();

    // --- Between two steps ---

    // Changes fp32 masters. `change` gets those of all elements of this rank's devices. All state
    // is read and written once, as a new generation of the same step, so that a crash leaves one or
    // the other. parameters() has the rounded masters on return.
    void change_masters(const MasterChange& change);
    // Shows the state of this rank's devices that has elements of the range, subgroup by subgroup.
    // Not collective.
    void see_state(shard::ElementRange range, const StateSight& see);
    // XXH3 over the tiles' XXH3 digests (little-endian, in tile order) of the fp32 masters without
    // padding. Independent of layout. Throws Error if copies of the state differ.
    std::uint64_t masters_digest();
    // The folder that save(folder) writes to: another one in `folder` if that is another run's.
    // Makes and claims it.
    std::string claim_checkpoint_folder(const std::string& folder);
    // Writes and publishes a checkpoint in that folder, with what the client of this rank has
    // beside the state. Returns the path of its index.
    std::string save(const std::string& folder, std::span<const std::byte> program = {});
    // Estimates it by writing a part of the state to a temporary file in `folder`.
    CheckpointTime expect_checkpoint(const std::string& folder);

    // --- Facts; not collective ---

    std::int64_t steps_done() const;
    store::Commit position() const;             // that commit() lists
    double loss_scale() const;                  // of the next step
    std::vector<std::int64_t> updates() const;  // that each tensor has had
    double waited_seconds() const;              // total wait of this rank for updates
    double commit_seconds() const;              // total for commits, hidden or not
    const trace::RunFacts& facts() const;
    const store::Lineage& line() const;      // the line of the current steps
    const PlacedSettings& settings() const;  // with the devices that were placed
    std::string host_of(int rank) const;
    double search_seconds() const;  // that open() took, without measuring devices

    // --- Facts of all ranks; collective ---

    // Bytes written to each of facts().devices so far, ordered by rank, then device.
    std::vector<std::uint64_t> written_bytes() const;
    // Bytes that each rank sent to other nodes in all steps, as gradients and parameters.
    std::vector<std::uint64_t> network_sent_bytes() const;
    // The largest parameter vector of any rank now. A vector shared in a node counts in full.
    std::size_t vector_bytes() const;

private:
    struct Parts;
    explicit Run(std::unique_ptr<Parts> parts);

    std::unique_ptr<Parts> parts_;
};

}  // namespace nearstep::engine
