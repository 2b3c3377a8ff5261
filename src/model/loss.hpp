// The loss of language models: the cross entropy of the next token.
#pragma once

#include <optional>

namespace at {
class Tensor;
}

namespace nearstep::model {

// Sum of the cross entropies, in nats, of `logits` [..., vocabulary] with `targets` [...] int64.
// With `gradient_weight`, overwrites the logits with that times the sum's gradient. Computes in
// fp32 by groups of tokens that stay in cache: a copy of all logits in fp32 never exists. Call it
// with autograd off.
double cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                     std::optional<double> gradient_weight);

}  // namespace nearstep::model
