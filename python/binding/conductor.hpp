// Drives one optimizer's engine from PyTorch's threads. Calls post work to the MPI thread and
// return at once, so no rank waits for another in its own code. Calls that wait do so for data of
// this rank.
#pragma once

#include "base/stopwatch.hpp"
#include "checkpoint/safetensors.hpp"
#include "config/run_settings.hpp"
#include "csd/gpu_tensors.hpp"
#include "engine/run.hpp"
#include "memory/gpu.hpp"
#include "mpi/agreement.hpp"
#include "python/binding/mpi_thread.hpp"

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nearstep::engine {

template <typename Archive>
void list(Archive& archive, Tensor& one) {
    archive(one.name, one.shape, one.group);
}

template <typename Archive>
void list(Archive& archive, StartRequest& one) {
    archive(one.kind, one.path);
}

}  // namespace nearstep::engine

namespace nearstep::python {

// The contiguous memory of a tensor. A null address means none.
struct TensorMemory {
    void* address = nullptr;
    Dtype dtype = Dtype::fp32;
};

// Where a GPU may write new parameters, for one rank alone: numbers of tensors, ascending, and
// their memory in the vector's format, which stays until their blocks were awaited or the engine is
// closed. `unused` (a cudaEvent_t) is over when nobody reads the old values.
struct GpuPlaces {
    std::vector<std::pair<std::size_t, std::byte*>> tensors = {};
    CUevent_st* unused = nullptr;
    const bool* are_written = nullptr;
};

// Start values of a tensor: in memory, for one rank alone also of its GPU, or in a file of which a
// rank reads its own tiles.
struct StartValues {
    TensorMemory piece;
    const checkpoint::StoredTensor* stored = nullptr;  // null: `piece`
};

// The settings of an optimizer's run, from "key=value" as for nearstep train's --set. Throws
// ConfigError.
config::RunSettings run_of(Dtype dtype, const std::vector<std::string>& settings);

struct OptimizerPlan {
    // See run_of(). Without csd.per_rank ranks divide the folders, see engine::Grant.
    std::vector<std::string> settings = {};
    std::string granted_devices = {};  // see config::places_of_devices()
    std::vector<engine::Tensor> tensors = {};
    std::vector<std::size_t> tensors_of_blocks = {};  // tensors per block, in their order
    Dtype dtype = Dtype::fp32;
    std::string model = {};  // see engine::Identity
    std::optional<int> gpu = std::nullopt;
    CUstream_st* gradient_stream = nullptr;  // see engine::EngineOptions; never destroyed
    bool fills_gpu = true;                   // see engine::EngineOptions
    bool puts_at_once = false;               // likewise
    int threads = 0;                         // see engine::Identity
    // Processes of this host that each have an engine of one rank, though they are ranks of another
    // library's; 0: ranks find each other by MPI.
    int processes_beside = 0;
    engine::ParameterHome parameters = engine::ParameterHome::vector;
    engine::ProgramUse program = engine::ProgramUse::optional;
    std::string checkpoint_folder = {};  // empty: as the settings say
    std::string below_path = {};         // of a rank that serves: a folder in each of csd.path
    // What else all ranks must have alike, and only the program uses.
    mpi::NamedValues of_program = {};
};

// Measurements of the drives at the start.
struct StartFacts {
    double state_bytes = 0;  // of all ranks; a step reads and writes this much each
    double seconds = 0;      // time to write it for a new run, as far as it is, else to read it
    double rated_tbw = 0;    // TB, of a device's drive; 0: unknown
};

// A tensor's state in memory, from another layout; and the updates that it has had.
struct CarriedTensor {
    std::array<const float*, 2> moments = {};
    std::int64_t updates = 0;
};

// Facts about the last finished step.
struct StepStats {
    std::int64_t step = 0;
    bool is_of_step = false;  // false: no step of this process has ended
    engine::GradientFacts gradients;
    engine::UpdateReport update;
    double gradients_s = 0;  // from the first gradient until all ranks' are summed
    double waited_s = 0;     // by this rank for parameters, since end_step()
    double commit_s = 0;
    double loss_scale = 1;     // of the next step
    std::int64_t skipped = 0;  // steps of this process whose gradient was not finite
    std::int64_t guesses = 0;  // total so far, see trace::Guess
    std::int64_t misses = 0;   // total of wrong guesses
};

// Lists the parts of a plan that rank 0 sends to ranks that serve.
template <typename Archive>
void list(Archive& archive, OptimizerPlan& plan) {
    archive(plan.settings, plan.tensors, plan.tensors_of_blocks, plan.dtype, plan.model,
            plan.threads, plan.program, plan.checkpoint_folder, plan.of_program);
}
// Writes which tensors have values, and in which format.
std::string formats_of(std::span<const StartValues> values);

class Conductor {
public:
    // Called several times a second while waiting. Throws to stop the wait.
    using Poll = std::function<void()>;

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
    std::int64_t newest_step() const { return opened_->newest_step(); }
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
    // until is_done() is true for the returned number. If facts().encodes_on_gpu they are on the
    // GPU, computed when `made` (a cudaEvent_t) is over, and OptimizerPlan::gradient_stream may
    // read them even later: see Tensor.record_stream of PyTorch.
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
    std::vector<std::pair<std::size_t, std::size_t>> elements_on_host(std::size_t tensor) const;
    // Replaces the masters of these tensors by values that the program gave its parameters. A
    // master that rounds to its value stays. All ranks call it between two steps, with the same
    // tensors and values, or none. Keep the pieces until is_done(). `is_last`: before close(), for
    // which a rank may have to wait long.
    std::uint64_t change_masters(std::vector<std::pair<std::size_t, TensorMemory>> values,
                                 bool is_last);
    // Gradients of another step will come: see engine::Run::expect_backward().
    void expect_step() {
        post([this] { expect_on_all(); });
    }

    // Waits until the block's parameters in vector() are those of the last step.
    void await_block(std::size_t block, const Poll& poll);
    // Whether await_block() would return at once.
    bool has_block(std::size_t block) const;
    // Waits until all steps are finished and durable.
    void finish(const Poll& poll);
    bool is_done(std::uint64_t work) const;
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
    const std::string& program_state() const { return program_state_; }

    // With ParameterHome::state, from open() on: see engine::Run. Any thread may call; close()
    // waits for it.
    void read_parameters(shard::ElementRange range, std::span<std::byte> to) const;
    void drop_parameters(shard::ElementRange range) { engine().drop_parameters(range); }

    std::span<const std::byte> vector() const { return vector_; }
    const trace::RunFacts& facts() const { return facts_; }
    StartFacts start() const {
        const std::lock_guard lock(mutex_);
        return start_;
    }
    // Whether masters have start values of this format bit by bit.
    bool holds(Dtype dtype) const;
    const config::RunSettings& run() const { return run_; }
    int rank() const { return rank_; }
    // The number of ranks that compute.
    int ranks() const { return ranks_; }
    // Whether no other rank has a part in this.
    bool is_alone() const { return is_alone_; }
    std::string line() const { return lines_.front(); }
    // The run's id, and those of its parents.
    const std::vector<std::string>& lines() const { return lines_; }
    // The checkpoint that is as new as the step which the run began from; empty: there is none.
    const std::string& found_checkpoint() const { return opened_->found_checkpoint(); }
    // Calls of end_step(), plus the steps before this process.
    std::int64_t steps() const { return steps_; }
    // The newest step that survives a crash of any rank.
    std::int64_t durable_step() const {
        const std::lock_guard lock(mutex_);
        return durable_step_;
    }
    // The next step's loss scale. Waits for the norm of the previous step.
    double loss_scale(const Poll& poll);
    StepStats stats() const;

    // Drops unfinished work; durable state stays. Called by the destructor. vector() stays valid
    // if `keeps_vector`.
    void close(bool keeps_vector = false);

private:
    friend class Server;

    static constexpr int kPatience = 10;  // as Communicator::together()
    static std::size_t elems_of(const engine::Tensor& tensor);
    std::uint64_t post(std::function<void()> work);  // see is_done()
    // An engine of one rank that has nothing to do with MPI, whether that runs or not.
    bool acts_alone() const { return plan_.processes_beside > 0; }
    void meet(Purpose purpose);  // see MpiThread
    bool meet(Purpose purpose, bool raises, std::chrono::seconds limit);
    void tell(Deed deed, std::uint64_t what = 0, std::string content = {}) const;
    bool serves() const;
    void leave_to_parent();  // in a fork of the process
    bool has_failed() const {
        const std::lock_guard lock(mutex_);
        return failure_ != nullptr;
    }
    void wait(const Poll& poll, const std::function<bool()>& is_over);
    void do_and_wait(std::function<void()> work);
    std::string do_in_folder(const std::function<std::string()>& work);
    void check_parameter_home() const;
    void open_run(const engine::StartRequest& request);
    void let_go();
    engine::Run& engine() { return *opened_; }
    std::vector<std::string> prepare_state(std::span<const StartValues> values);
    void fill_state(std::span<const StartValues> values);
    engine::Carried carried_state() const;
    void share_start_values(std::span<const StartValues> values);
    void pass_to_servers(std::span<const StartValues> values);
    std::vector<StartValues> take_from_rank_0(const std::string& formats);
    std::span<std::byte> bytes_of(std::size_t tensor, const TensorMemory& piece) const;
    std::pair<std::size_t, std::size_t> overlap(std::size_t tensor, std::size_t first,
                                                std::size_t count) const;
    void fill(std::span<const StartValues> values, std::size_t first,
              std::span<float> masters) const;
    void change(std::span<const StartValues> values, std::size_t first,
                std::span<float> masters) const;
    void change_on_all(const std::vector<std::pair<std::size_t, TensorMemory>>& values,
                       bool is_last);
    void change_masters_to(std::span<const StartValues> values);
    void begin_on_all(const engine::StepSettings& step, const std::vector<std::size_t>& absent,
                      bool is_given_up);
    void put_on_all(std::size_t block, std::span<const TensorMemory> pieces, float factor,
                    CUevent_st* made);
    void end_on_all(const std::vector<std::size_t>& absent, bool is_given_up,
                    const GpuPlaces& places = {});
    void use_places(const GpuPlaces& places);
    void expect_on_all();
    std::string claim_on_all(const std::string& folder);
    std::string save_on_all(const std::string& folder, const std::string& program);
    std::uint64_t digest_on_all();
    void write_gradients(std::size_t block, std::span<const TensorMemory> pieces, float factor,
                         CUevent_st* made);
    void pass_blocks();
    void make_durable(std::int64_t step);
    void end_void_step(bool is_given_up);
    mpi::NamedValues values_of_all(const engine::StartRequest& request) const;
    static std::uint64_t digest_of(const engine::StepSettings& step);
    [[noreturn]] void refuse_unequal(const engine::StepSettings& step);
    // What all ranks know of a step's gradients.
    struct Presence {
        std::vector<std::size_t> skipped;  // tensors without a gradient on any rank
        bool is_given_up = false;          // by any rank
        bool is_alike = true;              // all ranks have the same digest
    };
    Presence presence_on_all(const std::vector<std::size_t>& absent, bool is_given_up,
                             std::uint64_t digest) const;

    OptimizerPlan plan_;
    config::RunSettings run_;  // csd.storage_ranks is known from open() on
    engine::Layout layout_;
    std::vector<std::size_t> first_tensors_;  // first tensor of each block, and the end
    engine::Grant grant_;
    memory::Stream gradient_stream_;
    mutable std::shared_mutex reading_;  // close() holds it alone

    // Used only by the MPI thread.
    std::optional<mpi::Communicator> world_;
    std::optional<mpi::Communicator> alike_;    // the ranks that compute, or those that serve
    std::optional<mpi::Communicator> servers_;  // rank 0 and those that serve
    memory::Buffer served_;                     // rank 0's values of the tiles that this rank owns
    std::uint64_t number_ = 0;                  // see Order
    std::optional<csd::GpuTensors> tensors_;    // of one rank with a GPU; set in open()
    std::optional<engine::Run> opened_;
    store::Commit carried_position_;
    std::vector<CarriedTensor> carried_;  // by tensor; empty: none
    std::string carried_program_;         // what was kept with them
    Stopwatch begun_;                     // of the step
    bool is_void_ = false;                // the step was given up before it began
    std::string program_;                 // of the step that ends
    std::int64_t skipped_ = 0;
    std::int64_t guesses_ = 0;
    std::int64_t misses_ = 0;

    // Set in open() and begin().
    std::span<const std::byte> vector_;
    trace::RunFacts facts_;
    std::vector<std::string> lines_ = {""};
    std::string program_state_;
    std::uint64_t start_work_ = 0;
    int rank_ = 0;
    int ranks_ = 1;
    bool is_alone_ = true;

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::uint64_t posted_ = 0;
    std::uint64_t done_ = 0;
    std::size_t blocks_here_ = 0;  // blocks whose parameters are final
    std::uint64_t norms_asked_ = 0;
    std::uint64_t norms_known_ = 0;
    std::int64_t steps_ = 0;
    std::int64_t durable_step_ = 0;
    double loss_scale_ = 1;
    double waited_s_ = 0;
    StartFacts start_;
    StepStats stats_;
    std::exception_ptr failure_;
    bool is_closed_ = false;
    memory::Buffer kept_;  // the vector, after close()
};

}  // namespace nearstep::python
