// The computation of one block, as a function of its parameters and its input.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace at {
class Tensor;
}

namespace nearstep::model {

// The format to which a block's parameters are converted. `fp32` is for blocks whose gradients are
// sums too long for 16 bits, such as an embedding.
enum class BlockFormat { compute, fp32 };

// The part of a block's output that the caller uses: its values, or only its graph, where backward
// computes the block again and has the output's gradient. Then the last product may be left out, a
// third of a GPT layer's work: the values mean nothing.
enum class OutputUse { values, graph };

struct BlockFunction {
    // `parameters`: the block's own in geometry order, then the borrowed ones. `input`: the tokens,
    // [rows, columns] int64, for block 0; else the previous block's output in the compute format.
    // The runner converts the output to the compute format. Supports autograd, and must give the
    // same bits for the same arguments.
    std::function<at::Tensor(const std::vector<at::Tensor>& parameters, const at::Tensor& input,
                             OutputUse use)>
        run;

    // Parameters of earlier blocks that this block reads too: indices into Geometry::parameters.
    // Their gradients are added when the owner's backward runs.
    std::vector<std::size_t> borrowed;

    BlockFormat format = BlockFormat::compute;

    // Elements in the compute format that autograd keeps per token for the block's backward,
    // besides input and parameters. 0: the block is never kept, see Residence::kept_blocks.
    std::size_t kept_elems = 0;
    // Elements per token that a layer's forward and backward hold at once, gradients included.
    std::size_t most_elems = 0;
};

}  // namespace nearstep::model
