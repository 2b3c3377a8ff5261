// What the engine is told: the tensors in a model's parameter vector, whose training it is, and the
// optimizer of each parameter group.
#pragma once

#include "base/dtype.hpp"
#include "csd/optimizer.hpp"
#include "shard/partition.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace nearstep::engine {

struct Tensor {
    std::string name;
    std::vector<std::int64_t> shape;  // row-major
    std::size_t offset = 0;           // first element in the parameter vector
    std::size_t group = 0;            // its parameter group: see Step::groups; at most 15
};

struct Layout {
    std::vector<Tensor> tensors = {};              // in the order of the vector, without gaps
    std::vector<shard::ElementRange> blocks = {};  // adjacent; forward order
    std::size_t elems = 0;
    Dtype dtype = Dtype::bf16;  // of parameters and dense gradients
};

// What tells one training from another.
struct Identity {
    std::string model = {};   // a line: state of another model is refused
    std::uint64_t seed = 0;   // of rounding, too; with another one a run leaves its line
    std::string data = {};    // digest of what is trained on; another one leaves the line, too
    std::int64_t steps = 0;   // of the whole run: one with fewer is unfinished
    std::string config = {};  // a text that checkpoints keep
};

// Of a parameter group, as PyTorch names them; `rate` is the learning rate, `decay` the weight
// decay.
struct Hyper {
    csd::Optimizer optimizer = csd::Optimizer::adamw;
    double rate = 1e-3;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double epsilon = 1e-8;
    double decay = 0;
    bool is_skipped = false;  // no rank has a gradient: masters and moments stay as they are
};

struct LossScaleSettings {
    double first = 65536;
    std::int64_t growth_steps = 1000;  // good ones before it doubles
};

}  // namespace nearstep::engine
