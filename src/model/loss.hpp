// The loss of language models: the cross entropy of the next token.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

namespace at {
class Tensor;
}

namespace nearstep::model {

// Cuts the last block's input [rows, columns, width] and the targets [rows, columns] into pieces of
// `most_tokens`, whose logits may exist at once, and calls `work` for each: [1, tokens, width] and
// [1, tokens]. A single piece keeps its shape.
void for_pieces(
    const at::Tensor& input, const at::Tensor& targets, std::int64_t most_tokens,
    const std::function<void(const at::Tensor& input, const at::Tensor& targets)>& work);

// Sum of the cross entropies, in nats and as one double on the device of the logits, of `logits`
// [..., columns] with `targets` [...] int64. Columns from `vocabulary` on do not count. With
// `gradient_weight`, overwrites the logits with the sum's gradient times that weight. Computes in
// fp32: on a GPU in one kernel, if the program was built with CUDA; else by groups of tokens, which
// fit in cache on the CPU. So it needs no fp32 copy of all logits. Call it with autograd off.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                         std::int64_t vocabulary, std::optional<double> gradient_weight);

}  // namespace nearstep::model
