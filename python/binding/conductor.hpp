// One optimizer's engine, driven from the threads of PyTorch: calls hand work to the thread that
// calls MPI and come back at once, so that no rank waits for another one in its own code. A call
// that waits does so for what this rank has been brought.
#pragma once

#include "config/run.hpp"
#include "engine/engine.hpp"
#include "memory/gpu.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nearstep::python {

// Memory of a tensor, its elements without gaps; none: a null address.
struct Piece {
    void* address = nullptr;
    Dtype dtype = Dtype::fp32;
};

struct Plan {
    std::vector<std::string> settings;  // "key=value", as nearstep train's --set
    std::vector<engine::Tensor> tensors;
    std::vector<std::size_t> tensors_of_blocks;  // how many, in their order
    Dtype dtype = Dtype::fp32;
    std::string model;  // see engine::Identity
    std::optional<int> gpu;
    CUstream_st* gradient_stream = nullptr;  // see engine::EngineOptions; stays as long as the GPU
};

struct Beginning {
    bool is_resuming = false;   // from what is there, if anything is
    bool is_fresh = false;      // whatever is there
    std::string checkpoint;     // to resume from
    std::vector<Piece> values;  // start values of each tensor, in host memory
};

// What the start showed of the drives.
struct StartFacts {
    double state_bytes = 0;  // of all ranks; a step reads and writes as much
    double seconds = 0;      // that writing it, for a start anew, or reading it took
    double rated_tbw = 0;    // TB, of a device's drive; 0: not known
};

// What the last step that is over took; `seconds` of its phases by name.
struct StepStats {
    std::int64_t step = 0;
    engine::GradientFacts gradients;
    engine::UpdateReport update;
    double gradients_s = 0;  // from the first gradient till all ranks' are added up
    double waited_s = 0;     // by this rank's program for parameters
    double commit_s = 0;
    double loss_scale = 1;     // of the next step
    std::int64_t guesses = 0;  // so far, see engine::Guess
    std::int64_t misses = 0;   // the wrong ones
};

class Conductor {
public:
    // Runs while something waits, several times a second; throws to stop waiting.
    using Poll = std::function<void()>;

    // Throws ConfigError.
    explicit Conductor(Plan plan);
    Conductor(const Conductor&) = delete;
    Conductor& operator=(const Conductor&) = delete;
    ~Conductor();

    // Opens the state and brings it to where it begins; all ranks take the first one's start
    // values. Returns what to tell the user. Waits for all ranks.
    std::vector<std::string> begin(const Beginning& beginning);

    // A step begins: `absent` are the tensors that this rank has no gradient for.
    void begin_step(const engine::Step& step, const std::vector<std::size_t>& absent);
    // The block's gradients, a piece per tensor, which are multiplied by `factor`. They stay until
    // is_done() of what this returns. If facts().encodes_on_gpu they are on the GPU and there when
    // `made` (a cudaEvent_t) is over; Plan::gradient_stream reads them, maybe later than is_done().
    std::uint64_t put(std::size_t block, std::vector<Piece> pieces, float factor, CUevent_st* made);
    // All blocks were put. The update goes on by itself.
    void end_step();

    // The block's parameters in vector() are those of the last step.
    void await_block(std::size_t block, const Poll& poll);
    // All steps are over and durable.
    void finish(const Poll& poll);
    bool is_done(std::uint64_t work) const;

    // Collective, as engine::Engine's; wait for all ranks.
    std::string save(const std::string& folder);
    std::uint64_t masters_digest();

    std::span<const std::byte> vector() const { return vector_; }
    const engine::EngineFacts& facts() const { return facts_; }
    const StartFacts& start() const { return start_; }
    const config::Run& run() const { return run_; }
    int rank() const { return rank_; }
    int ranks() const { return ranks_; }
    std::string line() const { return line_; }
    // Steps that end_step() was called for, and those before.
    std::int64_t steps() const { return steps_; }
    // Of the next step; waits for the norm of the one before.
    double loss_scale(const Poll& poll);
    StepStats stats() const;

    // Gives up what is not finished; what is durable stays. The destructor calls it.
    void close();

private:
    void post(std::function<void()> work);
    void wait(const Poll& poll, const std::function<bool()>& is_over);
    void do_and_wait(std::function<void()> work);
    void open(const Beginning& beginning, std::vector<std::string>& lines);
    void share_start_values(std::span<const Piece> values);
    void fill(std::span<const Piece> values, std::size_t first, std::span<float> masters) const;
    void write_gradients(std::size_t block, std::span<const Piece> pieces, float factor,
                         CUevent_st* made);
    void pass_blocks();

    config::Run run_;
    engine::Layout layout_;
    std::vector<std::size_t> first_tensors_;  // of blocks, and the end
    std::string model_;
    std::optional<int> gpu_;
    memory::Stream gradient_stream_;

    // Of the thread that calls MPI.
    std::optional<mpi::Communicator> world_;
    std::unique_ptr<engine::Engine> engine_;
    double begun_at_ = 0;
    std::int64_t guesses_ = 0;
    std::int64_t misses_ = 0;

    // Set in begin().
    std::span<const std::byte> vector_;
    engine::EngineFacts facts_;
    StartFacts start_;
    std::string line_;
    int rank_ = 0;
    int ranks_ = 1;

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::uint64_t posted_ = 0;
    std::uint64_t done_ = 0;
    std::size_t blocks_here_ = 0;  // whose parameters are final
    std::uint64_t norms_asked_ = 0;
    std::uint64_t norms_known_ = 0;
    std::int64_t steps_ = 0;
    double loss_scale_ = 1;
    double waited_s_ = 0;
    StepStats stats_;
    std::exception_ptr failure_;
    bool is_closed_ = false;
};

}  // namespace nearstep::python
