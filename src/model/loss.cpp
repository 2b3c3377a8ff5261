// Computes the cross entropy and its gradient. Used by network.cpp.
#include "model/loss.hpp"

#include "base/error.hpp"
#include "memory/gpu.hpp"
#include "model/loss_kernel.hpp"
#include "model/torch_types.hpp"

#include <ATen/ATen.h>

#include <algorithm>

namespace nearstep::model {

namespace {

// `logits` [tokens, columns], `targets` [tokens].
at::Tensor on_gpu(const at::Tensor& logits, const at::Tensor& targets, std::int64_t vocabulary,
                  std::optional<double> gradient_weight) {
    expects(logits.is_contiguous(), "the kernel takes whole rows of logits");
    const at::Tensor losses = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
    cross_entropy_on_gpu({.logits = logits.mutable_data_ptr(),
                          .dtype = dtype_of(logits.scalar_type()),
                          .tokens = static_cast<std::size_t>(logits.size(0)),
                          .columns = static_cast<std::size_t>(logits.size(1)),
                          .vocabulary = static_cast<std::size_t>(vocabulary),
                          .targets = targets.const_data_ptr<std::int64_t>(),
                          .losses = losses.mutable_data_ptr<float>(),
                          .gradient_weight = gradient_weight},
                         memory::Stream::of_default());
    return losses.sum(at::kDouble);
}

}  // namespace

void for_pieces(
    const at::Tensor& input, const at::Tensor& targets, std::int64_t most_tokens,
    const std::function<void(const at::Tensor& input, const at::Tensor& targets)>& work) {
    const std::int64_t tokens = targets.numel();
    if (tokens <= most_tokens) {
        work(input, targets);
        return;
    }
    const at::Tensor inputs = input.reshape({1, tokens, -1});
    const at::Tensor all_targets = targets.view({1, tokens});
    for (std::int64_t first = 0; first < tokens; first += most_tokens) {
        const std::int64_t count = std::min(most_tokens, tokens - first);
        work(inputs.narrow(1, first, count), all_targets.narrow(1, first, count));
    }
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                         std::int64_t vocabulary, std::optional<double> gradient_weight) {
    const std::int64_t columns = logits.size(-1);
    const at::Tensor flat = logits.view({-1, columns});
    if (logits.is_cuda() && memory::gpus() > 0) {
        return on_gpu(flat, targets.reshape({-1}), vocabulary, gradient_weight);
    }
    const at::Tensor wanted = targets.view({-1, 1});
    const std::int64_t group_elems = std::int64_t{1} << (logits.is_cpu() ? 18 : 27);
    const std::int64_t group = std::max<std::int64_t>(1, group_elems / columns);
    if (gradient_weight) {
        flat.narrow(1, vocabulary, columns - vocabulary).zero_();
    }
    at::Tensor sum = at::zeros({}, logits.options().dtype(at::kDouble));
    for (std::int64_t first = 0; first < flat.size(0); first += group) {
        const std::int64_t tokens = std::min(group, flat.size(0) - first);
        const at::Tensor part = flat.narrow(0, first, tokens).narrow(1, 0, vocabulary);
        const at::Tensor index = wanted.narrow(0, first, tokens);
        at::Tensor log_share = at::log_softmax(part.to(at::kFloat), 1);
        sum -= log_share.gather(1, index).sum(at::kDouble);
        if (gradient_weight) {
            at::Tensor share = log_share.exp_();
            share.scatter_add_(1, index, at::full({tokens, 1}, -1.0F, share.options()));
            at::Tensor gradient = part;
            at::mul_out(gradient, share, at::scalar_tensor(*gradient_weight, at::kDouble));
        }
    }
    return sum;
}

}  // namespace nearstep::model
