// What a block of a network computes, as a function of its parameters and its input.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace at {
class Tensor;
}

namespace nearstep::model {

// The format that a block's parameters are converted to. `fp32` is for blocks whose gradients are
// long sums that 16 bits cannot hold, such as the rows of an embedding.
enum class BlockFormat { compute, fp32 };

struct BlockFunction {
    // `parameters`: the block's own in the order of the geometry, then the borrowed ones. `input`:
    // of block 0 the tokens, [rows, columns] int64; of others the output of the block before, in
    // the compute format. The runner converts the output to the compute format. Records what
    // autograd needs if autograd is on, and must give the same bits for the same arguments.
    std::function<at::Tensor(const std::vector<at::Tensor>& parameters, const at::Tensor& input)>
        run;

    // Parameters of earlier blocks that this one reads too: indices into Geometry::parameters.
    // Their gradients are added when the owner runs backward.
    std::vector<std::size_t> borrowed;

    BlockFormat format = BlockFormat::compute;
};

}  // namespace nearstep::model
