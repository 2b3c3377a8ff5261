// One optimizer's run on one rank, as the MPI thread drives it: on the ranks that compute for a
// Conductor, on those that serve by rank 0's commands.
#pragma once

#include "base/packed.hpp"
#include "base/stopwatch.hpp"
#include "config/run_settings.hpp"
#include "csd/gpu_tensors.hpp"
#include "engine/state/carried.hpp"
#include "memory/buffer.hpp"
#include "memory/gpu.hpp"
#include "mpi/agreement.hpp"
#include "nearstep/run.hpp"
#include "python/binding/calls.hpp"
#include "python/binding/mpi_thread.hpp"
#include "python/binding/optimizer_plan.hpp"
#include "python/binding/work_queue.hpp"
#include "store/lineage.hpp"
#include "store/manifest.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nearstep::python {

// How far a session is, for the program's threads. Guarded by the session's queue.
struct Progress {
    std::size_t blocks_here = 0;  // blocks whose parameters are final
    std::uint64_t norms_asked = 0;
    std::uint64_t norms_known = 0;
    std::int64_t steps = 0;
    std::int64_t durable_step = 0;
    double loss_scale = 1;
    double waited_s = 0;
    StartFacts start = {};
    StepStats stats = {};

    // Whether the block's parameters are those of the last step.
    bool has_block(std::size_t block) const {
        return blocks_here > block && norms_known == norms_asked;
    }
};

// Only the MPI thread calls, unless stated otherwise. What run() and on_all() do is collective.
class OptimizerSession {
public:
    // `queue` outlives this. Any thread. Throws ConfigError.
    OptimizerSession(OptimizerPlan plan, WorkQueue& queue);
    OptimizerSession(const OptimizerSession&) = delete;
    OptimizerSession& operator=(const OptimizerSession&) = delete;
    ~OptimizerSession() = default;

    // Waits until all ranks that compute make the same call.
    void match_calls(CollectiveCall call) const;
    // Decides what the run goes on from, and opens the state without changing it, on all ranks.
    void open_with_others(const engine::StartRequest& request);
    // Does the part of open_with_others() that a rank that serves does.
    void open(const engine::StartRequest& request);
    bool is_open() const { return opened_.has_value(); }
    // After the PrepareCall of a new state: writes its values.
    void fill_state(std::span<const StartValues> values);
    // See Conductor::carry(). Any thread, before fill_state().
    void carry(const store::Commit& position, std::vector<CarriedTensor> tensors,
               std::string_view program);

    // Does the call here and, on rank 0, tells the ranks that serve to do it, too.
    template <typename Call>
    auto on_all(Call call) {
        Packer told;
        call.told(told);
        send(Call::kCommand, std::move(told.bytes));
        return run(call);
    }
    // Does the call on this rank, as all ranks do.
    std::vector<std::string> run(const PrepareCall& call);
    void run(const ExpectCall& call);
    void run(const BeginStepCall& call);
    void run(const PutCall& call);
    void run(const EndStepCall& call);
    void run(const ChangeMastersCall& call);
    std::string run(const ClaimFolderCall& call);
    std::string run(const SaveCall& call);
    std::uint64_t run(const DigestCall& call);

    // The step was given up before it began, so that no gradients come. Until it ends.
    bool is_void() const { return is_void_; }
    // Keeps what the program has at the step that ends next.
    void keep(const std::string& about, std::span<const std::span<const std::byte>> pieces,
              CUevent_st* made);
    // See Conductor::change_masters(). Collective.
    void change_masters(const std::vector<std::pair<std::size_t, TensorMemory>>& values,
                        bool is_last);
    std::array<std::vector<float>, 3> read_state(std::size_t tensor);

    // The ranks that serve let go, too, unless this one `has_failed`. Returns an error of what
    // keeping the vector needs; without `keeps_vector` there is none.
    std::exception_ptr close(bool keeps_vector, bool has_failed);
    // Ends the run and its communicators. Not collective.
    void let_go();
    // Leaves the parent's files, connections and memory as they are, in a fork of the process. Any
    // thread may call.
    void leave_to_parent();

    // The calls below come from any thread, after open().
    engine::Run& engine() { return *opened_; }
    const engine::Run& engine() const { return *opened_; }
    // See Conductor's functions of the same names.
    std::vector<std::pair<std::size_t, std::size_t>> elements_on_host(std::size_t tensor) const;
    void read_parameters(shard::ElementRange range, std::span<std::byte> to) const;
    void copy_parameters(shard::ElementRange range, std::span<std::byte> to,
                         const memory::Stream* stream) const;
    bool holds(Dtype dtype) const;
    Progress& progress() { return progress_; }
    const Progress& progress() const { return progress_; }
    const config::RunSettings& settings() const { return run_; }
    const engine::Layout& layout() const { return layout_; }
    std::span<const std::byte> vector() const { return vector_; }
    const trace::RunFacts& facts() const { return facts_; }
    double state_bytes() const;  // of all ranks
    // The run's id, and those of its parents.
    const std::vector<std::string>& lines() const { return lines_; }
    const std::string& program_state() const { return program_state_; }
    int rank() const { return rank_; }
    int ranks() const { return ranks_; }  // that compute
    bool is_alone() const { return is_alone_; }

private:
    static constexpr int kPatience = 10;  // as Communicator::together()
    static std::size_t elems_of(const engine::Tensor& tensor);
    void send(Command command, std::string content = {}) const;
    // A run of one rank that has nothing to do with MPI, whether that runs or not.
    bool acts_alone() const { return plan_.processes_beside > 0; }
    bool serves() const { return !acts_alone() && MpiThread::instance().serves(); }
    bool match_calls(CollectiveCall call, bool raises, std::chrono::seconds limit) const;
    void check_parameter_home() const;

    // --- Values of tensors: optimizer_session_values.cpp ---
    engine::Carried carried_state() const;
    void share_start_values(std::span<const StartValues> values) const;
    void pass_to_servers(std::span<const StartValues> values) const;
    std::vector<StartValues> take_from_rank_0(const Formats& formats);
    std::span<std::byte> bytes_of(std::size_t tensor, const TensorMemory& piece) const;
    std::pair<std::size_t, std::size_t> overlap(std::size_t tensor, std::size_t first,
                                                std::size_t count) const;
    void fill(std::span<const StartValues> values, std::size_t first,
              std::span<float> masters) const;
    void change(std::span<const StartValues> values, std::size_t first,
                std::span<float> masters) const;

    // --- A step: optimizer_session_step.cpp ---
    void use_places(const GpuPlaces& places);
    void pass_blocks();
    void keep_program(std::int64_t step);
    void make_durable(std::int64_t step);
    void end_void_step(bool is_given_up);

    // --- What ranks must have alike: optimizer_session_agreement.cpp ---
    mpi::NamedValues values_of_all(const engine::StartRequest& request) const;
    static std::uint64_t digest_of(const engine::StepSettings& step);
    [[noreturn]] void refuse_unequal(const engine::StepSettings& step) const;
    // The presence of a step's gradients on all ranks.
    struct Presence {
        std::vector<std::size_t> skipped;  // tensors without a gradient on any rank
        bool is_given_up = false;          // by any rank
        bool is_alike = true;              // all ranks have the same digest
    };
    Presence presence_on_all(const std::vector<std::size_t>& absent, bool is_given_up,
                             std::uint64_t digest) const;

    OptimizerPlan plan_;
    WorkQueue& queue_;
    Progress progress_;
    config::RunSettings run_;  // csd.storage_ranks is known from open() on
    engine::Layout layout_;
    std::vector<std::size_t> first_tensors_;  // first tensor of each block, and the end
    engine::Grant grant_;
    memory::Stream gradient_stream_;
    mutable std::shared_mutex reading_;  // let_go() holds it alone

    std::optional<mpi::Communicator> world_;
    std::optional<mpi::Communicator> alike_;    // the ranks that compute, or those that serve
    std::optional<mpi::Communicator> servers_;  // rank 0 and those that serve
    memory::Buffer served_;                     // rank 0's values of the tiles that this rank owns
    std::uint64_t number_ = 0;                  // see ServeOrder
    std::optional<csd::GpuTensors> tensors_;    // of one rank with a GPU; set in open()
    std::optional<engine::Run> opened_;
    store::Commit carried_position_;
    std::vector<CarriedTensor> carried_;  // by tensor; empty: none
    std::string carried_program_;         // what was kept with them
    Stopwatch begun_;                     // of the step
    bool is_void_ = false;
    std::string program_;  // of the step that ends
    std::int64_t skipped_ = 0;
    std::int64_t guesses_ = 0;
    std::int64_t misses_ = 0;

    // Set in open() and by the PrepareCall.
    std::span<const std::byte> vector_;
    trace::RunFacts facts_;
    std::vector<std::string> lines_ = {""};
    std::string program_state_;
    int rank_ = 0;
    int ranks_ = 1;
    bool is_alone_ = true;
    memory::Buffer kept_;  // the vector, after close()
};

}  // namespace nearstep::python
