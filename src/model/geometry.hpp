// A model's parameters and their places in the parameter vector. Needs no torch.
#pragma once

#include "config/run_settings.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace nearstep::model {

// A parameter's initial values: normal with a standard deviation, or a constant.
struct StartRule {
    double deviation = 0;
    double value = 0;
};

struct Parameter {
    std::string name;                 // as in published checkpoints: "h.0.attn.c_attn.weight"
    std::vector<std::int64_t> shape;  // row-major
    std::size_t offset = 0;           // first element in the parameter vector
    std::size_t elems = 0;
    StartRule start;
};

// The parameters of one layer: a range of the parameter vector and of Geometry::parameters.
struct Block {
    std::string name;
    std::size_t begin = 0;  // elements
    std::size_t end = 0;
    std::size_t first_parameter = 0;
    std::size_t last_parameter = 0;  // one past
};

// The output layer's weights, which a tied model has no parameter for.
inline constexpr const char* kOutputWeights = "lm_head.weight";

// Elements [begin, end) of the parameter vector.
struct Elements {
    std::size_t begin = 0;
    std::size_t end = 0;
};

struct Geometry {
    std::vector<Parameter> parameters;  // in the order of the vector
    std::vector<Block> blocks;          // in forward order, without gaps
    std::size_t elems = 0;
};

// The names of a matrix's dimensions, which its shape does not tell.
struct MatrixNote {
    std::string name;        // the parameter's
    std::string dimensions;  // in the order of the shape: "output, input"
    bool is_output = false;  // the output layer uses the parameter, too
};
std::vector<MatrixNote> describe_matrices(const config::ModelSettings& settings);

// Throws ConfigError for an unknown architecture or impossible sizes.
Geometry describe(const config::ModelSettings& settings);

// Describes a model that is trained. Throws ConfigError too if the model has more parameters than
// the tables of the state's parts, which each rank holds, are made for.
Geometry describe_trained(const config::ModelSettings& settings);

// Returns all that decides what the model computes: "gpt layers=4 heads=4 width=256 context=256
// vocabulary=256", then the other keys that are not at their default.
std::string describe_model(const config::ModelSettings& settings);

// Writes the initial values of elements [begin, begin + values.size()), all below geometry.elems.
// The values depend on seed and index alone.
void fill_start_values(const Geometry& geometry, std::uint64_t seed, std::size_t begin,
                       std::span<float> values);

}  // namespace nearstep::model
