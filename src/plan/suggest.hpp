// Ways to train a model on one machine with one GPU, or none, and what the planner expects of each.
#pragma once

#include "config/run_settings.hpp"
#include "plan/cost.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace nearstep::plan {

// Bytes, and bytes and operations per second. What computes is the GPU; without one it is the CPU,
// whose memory is the host's.
struct Machine {
    bool has_gpu = true;
    double gpu_operations = 0;  // of matrix products alone, as they are reached
    double gpu_memory = 0;
    double gpu_memory_rate = 0;  // reads and writes together, as all rates of memories and drives
    double gpu_link = 0;         // each direction
    double host_memory = 0;
    double host_memory_rate = 0;
    std::string folder = "runs/state";  // on the drive
    double drive_rate = 0;              // 0: no drive
    double drive_free = 0;
    double drive_rating = 0;  // that may still be written; 0: unknown
};

// Shares of a GPU's data-sheet rate that large matrix products reach. Of rows in memory in
// docs/results.
inline constexpr double kProductsOfPeak = 0.71;

enum class Trained { all, adapters };

struct Way {
    Trained trained = Trained::all;
    Home home = Home::gpu;  // of the parameters, between their uses
    arith::StateFormat state = arith::StateFormat::fp32;
    Codec codec = Codec::dense;
    csd::Keeping keeping = csd::Keeping::twice;  // on the drive, in memory, or with logs
    int micro_batch = 1;                         // sequences
    // GB that the parameters' window may take of the host; for Home::storage.
    double host_memory = 0;
    double log_gb = 0;  // csd.log_gb, with Keeping::logged

    friend bool operator==(const Way&, const Way&) = default;
};

// A model, and the work of a step.
struct Task {
    config::ModelSettings model;  // of which model.context are the tokens of a sequence
    ModelSize size;
    int sequences = 32;       // of a step
    double adapters = 0.006;  // parameters of LoRA's adapters beside the model's
};

struct Forecast {
    Way way;
    double step_s = 0;
    double tokens_per_s = 0;
    double gpu_bytes = 0;
    double host_bytes = 0;
    double drive_bytes = 0;
    double written_bytes = 0;      // to the drive in a step
    csd::LoggedState logged = {};  // with Keeping::logged
    double replay_s = 0;           // of a restart at worst
    bool does_fit = false;
};

Forecast forecast(const Machine& machine, const Task& task, const Way& way);

// Three ways that fit, the fastest first: of those that train all parameters from each home, and of
// LoRA's. A simpler home is taken before one that is 5 % faster. Empty if none fits.
std::vector<Forecast> suggest(const Machine& machine, const Task& task);

// "all parameters, layers streamed through 16 GB of the GPU, state in compact on the drive".
std::string name_of(const Way& way);

}  // namespace nearstep::plan
