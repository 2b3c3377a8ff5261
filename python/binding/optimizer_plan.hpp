// The values that a program gives its optimizer's session: the plan of the run and memory of
// tensors; and the report of a step that it gets back.
#pragma once

#include "checkpoint/safetensors.hpp"
#include "config/run_settings.hpp"
#include "mpi/agreement.hpp"
#include "nearstep/run.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

struct CUevent_st;
struct CUstream_st;

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

// The tensors in GPU memory to which the update of a rank that is alone may write new parameters:
// ascending numbers, and memory in the vector's format, which stays until their blocks were awaited
// or the engine is closed. `unused` (a cudaEvent_t) is over when nobody reads the old values.
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
    // Values that only the program uses, and that all ranks must have alike, too.
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

}  // namespace nearstep::python
