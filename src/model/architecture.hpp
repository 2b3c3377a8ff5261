// The known architectures, each with its parameters and its block functions. A new one (BERT,
// BLOOM, ViT) is a source in families/ and a row in the table of architecture.cpp; runner and
// trainer do not change. Below it are the parts that architectures share.
#pragma once

#include "config/run_settings.hpp"
#include "feed/fetch_order.hpp"
#include "model/block_function.hpp"
#include "model/geometry.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace nearstep::model {

struct Architecture {
    Geometry (*describe)(const config::ModelSettings& settings);
    // Makes one function per block of the geometry. The last one's output is the logits, as
    // output_product() gives them.
    std::vector<BlockFunction> (*make_functions)(const config::ModelSettings& settings);
};

const Architecture& architecture_of(config::ModelFamily network);

// The block that owns the parameter with this index.
int block_of(const Geometry& geometry, std::size_t parameter);

// The blocks whose parameters each block reads: itself first, then the blocks it borrows from.
std::vector<feed::Visit> blocks_read(const Geometry& geometry,
                                     const std::vector<BlockFunction>& functions);

// Functions by which describe functions append a block to the geometry, and a parameter to the last
// block.
void append_block(Geometry& geometry, std::string name);
void append_parameter(Geometry& geometry, std::string name, std::vector<std::int64_t> shape,
                      StartRule start);

// GPT-2's start values. Weights that add to the residual stream are divided by the square root of
// the number of additions.
struct Starts {
    StartRule zero, one, weight, residual;
};
Starts starts_for(int layers);

// Appends the output layer's weights "lm_head.weight" unless model.tied.
void append_output_weights(Geometry& geometry, const config::ModelSettings& settings);

// A block's function that computes values whatever the caller uses.
using ValueFunction =
    std::function<at::Tensor(const std::vector<at::Tensor>& parameters, const at::Tensor& input)>;

// The functions of a decoder: the embedding in fp32, model.layers times the layer, and the head.
// The head's last parameter is the output layer's weights: its own, or the borrowed first parameter
// of the embedding if model.tied.
std::vector<BlockFunction> decoder_functions(const config::ModelSettings& settings,
                                             ValueFunction embedding, const BlockFunction& layer,
                                             ValueFunction head);

// Causal attention. `queries` [rows, heads, columns, elems]; `keys` and `values` have the same
// shape, or fewer heads that divide those of the queries, each for that many neighbouring ones.
// Returns [rows, columns, heads * elems].
at::Tensor attend(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values);

}  // namespace nearstep::model
