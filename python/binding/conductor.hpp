// Drives one optimizer's session from PyTorch's threads. Calls post work to the MPI thread and
// return at once, so no rank waits for another in its own code. Calls that wait do so for data of
// this rank.
#pragma once

#include "python/binding/optimizer_plan.hpp"
#include "python/binding/optimizer_session.hpp"
#include "python/binding/work_queue.hpp"
#include "store/manifest.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nearstep::python {

class Conductor {
public:
    // Throws ConfigError.
    explicit Conductor(OptimizerPlan plan);
    Conductor(const Conductor&) = delete;
    Conductor& operator=(const Conductor&) = delete;
    ~Conductor();

    // Decides what the run goes on from, and opens the state without changing it. Returns whether
    // begin() needs start values. From here on vector() is there, and may hold them. Waits for all
    // ranks.
    bool open(const engine::StartRequest& request);
    // Between open() and begin(): see engine::Run.
    std::int64_t newest_step() const { return session_.engine().newest_step(); }
    void keep_to(std::int64_t step);
    // Before the begin() of a new state: it goes on from this one, whose masters are the start
    // values. Keep the moments until is_done(start_work()), and begin no step before.
    void carry(const store::Commit& position, std::vector<CarriedTensor> tensors,
               std::string_view program);
    // Initialises or resumes the state. All ranks use rank 0's start values in host memory, and
    // must have the same files. Returns messages for the user. Waits for all ranks, but a new
    // state's values are written in the background: keep `values` until is_done(start_work()).
    std::vector<std::string> begin(std::vector<StartValues> values);
    std::uint64_t start_work() const { return start_work_; }

    // Begins a step. `absent` are the tensors without a gradient on this rank, as far as known.
    // With `is_given_up` no gradient of this rank has left: no rank's step takes place, put() does
    // nothing, and end_step() ends it.
    void begin_step(const engine::StepSettings& step, const std::vector<std::size_t>& absent,
                    bool is_given_up);
    // Takes the block's gradients, one piece per tensor, and multiplies them by `factor`. Keep them
    // until is_done() is true for the number that put() returned for the last of this and all later
    // blocks. If facts().encodes_on_gpu they are on the GPU, computed when `made` (a cudaEvent_t)
    // is over, and OptimizerPlan::gradient_stream may read them even later: see
    // Tensor.record_stream of PyTorch.
    std::uint64_t put(std::size_t block, std::vector<TensorMemory> pieces, float factor,
                      CUevent_st* made);
    // Keeps what the program has at the step that end_step() ends, if it differs from what was
    // kept last: durable before the step is, with csd.durability "step". The pieces stay until
    // is_done(); those in pinned memory are complete when `made` (a cudaEvent_t) is over.
    std::uint64_t keep(std::string about, std::vector<std::span<const std::byte>> pieces,
                       CUevent_st* made);
    // Call after put() for all blocks. The update continues in the background. `absent`: the
    // tensors without a gradient on this rank. With `is_given_up` no rank's step takes place.
    void end_step(const std::vector<std::size_t>& absent, bool is_given_up,
                  const GpuPlaces& places);
    // Ranges of a tensor's elements, whose block was awaited, that vector() has. The GPU has
    // written the others to the places of the last end_step() that gave some.
    std::vector<std::pair<std::size_t, std::size_t>> elements_on_host(std::size_t tensor) const {
        return session_.elements_on_host(tensor);
    }
    // Replaces the masters of these tensors by values that the program gave its parameters. A
    // master that rounds to its value stays. All ranks call it between two steps, with the same
    // tensors and values, or none. Keep the pieces until is_done(). `is_last`: before close(), for
    // which a rank may have to wait long.
    std::uint64_t change_masters(std::vector<std::pair<std::size_t, TensorMemory>> values,
                                 bool is_last);
    // Gradients of another step will come: see engine::Run::expect_backward().
    void expect_step();

    // See engine::Run; the end of a step is its finish().
    std::vector<std::span<std::byte>> lent_memory() { return session_.engine().lent_memory(); }
    std::vector<std::vector<std::size_t>> lent_ends() const {
        return session_.engine().lent_ends();
    }

    // Waits until the block's parameters in vector() are those of the last step.
    void await_block(std::size_t block, const Poll& poll);
    // Whether await_block() would return at once.
    bool has_block(std::size_t block) const;
    // Waits until all steps are finished and durable.
    void finish(const Poll& poll);
    bool is_done(std::uint64_t work) const { return queue_.is_done(work); }
    // Waits until is_done().
    void await_work(std::uint64_t work, const Poll& poll);

    // Collective, like engine::Run's; they wait for all ranks.
    std::string claim_checkpoint_folder(const std::string& folder);
    // `program`: what keep() would keep, for a start from this checkpoint; empty: nothing.
    std::string save(const std::string& folder, const std::string& program);
    std::uint64_t masters_digest();
    // Masters and both moments of a tensor, on one rank.
    std::array<std::vector<float>, 3> read_state(std::size_t tensor);
    // The last step's place in the state, as its commit. Not collective.
    store::Commit position();
    // Updates that each tensor has had, after the last step has ended. Not collective.
    std::vector<std::int64_t> updates();
    // The program's own state, which keep() or save() kept for the step that the run began from:
    // see engine::Run::kept_program().
    const std::string& program_state() const { return session_.program_state(); }

    // With ParameterHome::state, from open() on: see engine::Run. Any thread may call; close()
    // waits for it.
    void read_parameters(shard::ElementRange range, std::span<std::byte> to) const {
        session_.read_parameters(range, to);
    }
    void copy_parameters(shard::ElementRange range, std::span<std::byte> to,
                         const memory::Stream* stream) const {
        session_.copy_parameters(range, to, stream);
    }
    bool can_copy_parameters() const { return session_.engine().can_copy_parameters(); }
    void drop_parameters(shard::ElementRange range) { session_.engine().drop_parameters(range); }

    std::span<const std::byte> vector() const { return session_.vector(); }
    const trace::RunFacts& facts() const { return session_.facts(); }
    StartFacts start() const {
        return queue_.locked([&] { return session_.progress().start; });
    }
    // The share of its part of the state that this rank has read or written. Any thread, after
    // open().
    double start_share() const {
        return static_cast<double>(session_.engine().transferred_bytes()) * session_.ranks() /
               session_.state_bytes();
    }
    // Whether masters have start values of this format bit by bit.
    bool holds(Dtype dtype) const { return session_.holds(dtype); }
    const config::RunSettings& run() const { return session_.settings(); }
    std::size_t blocks() const { return session_.layout().blocks.size(); }
    int rank() const { return session_.rank(); }
    // The number of ranks that compute.
    int ranks() const { return session_.ranks(); }
    // Whether no other rank has a part in this.
    bool is_alone() const { return session_.is_alone(); }
    std::string line() const { return lines().front(); }
    // The run's id, and those of its parents.
    const std::vector<std::string>& lines() const { return session_.lines(); }
    // The checkpoint that is as new as the step which the run began from; empty: there is none.
    const std::string& found_checkpoint() const { return session_.engine().found_checkpoint(); }
    // Calls of end_step(), plus the steps before this process.
    std::int64_t steps() const {
        return queue_.locked([&] { return session_.progress().steps; });
    }
    // The newest step that survives a crash of any rank.
    std::int64_t durable_step() const {
        return queue_.locked([&] { return session_.progress().durable_step; });
    }
    // The next step's loss scale. Waits for the norm of the previous step.
    double loss_scale(const Poll& poll);
    StepStats stats() const;

    // Drops unfinished work; durable state stays. vector() stays valid if `keeps_vector`; throws if
    // it cannot be completed then. Only the first call, or the destructor, does anything.
    void close(bool keeps_vector = false);

private:
    // Does what close() does. Returns its error.
    std::exception_ptr end(bool keeps_vector);
    std::string do_in_folder(const std::function<std::string()>& work);

    WorkQueue queue_;
    OptimizerSession session_;
    std::uint64_t start_work_ = 0;
};

}  // namespace nearstep::python
