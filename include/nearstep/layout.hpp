// A client's description of its model and training: the tensors in the parameter vector, the
// identity of the training, and the optimizer of each parameter group.
#pragma once

#include "arith/formats.hpp"
#include "base/dtype.hpp"
#include "config/engine_settings.hpp"
#include "shard/element_range.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace nearstep::engine {

struct Tensor {
    std::string name;
    std::vector<std::int64_t> shape;  // row-major
    std::size_t offset = 0;           // first element in the parameter vector
    std::size_t group = 0;            // parameter group: index in StepSettings::groups
};

struct Layout {
    std::vector<Tensor> tensors = {};              // in vector order, without gaps
    std::vector<shard::ElementRange> blocks = {};  // adjacent; forward order
    std::size_t elems = 0;
    Dtype dtype = Dtype::bf16;  // of parameters and dense gradients
};

// Tells one training from another.
struct Identity {
    std::string model = {};  // one line; state of another model is refused
    std::uint64_t seed = 0;  // also for rounding; another seed begins a new line
    std::string data = {};   // digest of the training data; another one begins a new line
    std::int64_t steps = 0;  // of the whole run; with fewer done it is unfinished
    // The text that checkpoints keep.
    std::function<std::string(const config::EngineSettings& placed)> config = {};
    // CPU threads of this rank's model arithmetic, since their number changes its bits; 0: the
    // model is not computed on the CPU, or the number is unknown.
    int threads = 0;
};

// Hyperparameters of a parameter group. `rate` is the learning rate, `decay` the weight decay.
struct Hyper {
    arith::Optimizer optimizer = arith::Optimizer::adamw;
    double rate = 1e-3;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double epsilon = 1e-8;
    double decay = 0;
    bool is_skipped = false;  // no rank has a gradient: masters and moments do not change

    friend bool operator==(const Hyper&, const Hyper&) = default;
};

struct LossScaleSettings {
    double first = 65536;
    std::int64_t growth_steps = 1000;  // finite steps before it doubles
};

}  // namespace nearstep::engine
