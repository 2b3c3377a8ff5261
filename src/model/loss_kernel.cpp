// Starts the kernel that computes losses and their gradient. Used by loss.cpp.
#include "model/loss_kernel.hpp"

#include "base/error.hpp"
#include "memory/gpu_launch.hpp"
#include "model/token_losses.hpp"

namespace nearstep::model {

void cross_entropy_on_gpu(const TokenLogits& of, const memory::Stream& stream) {
    expects(of.columns % 8 == 0 && of.vocabulary <= of.columns && of.vocabulary > 0,
            "a row of logits holds the vocabulary in whole octets");
    const TokenLosses arguments{.logits = of.logits,
                                .dtype = of.dtype,
                                .columns = of.columns,
                                .vocabulary = of.vocabulary,
                                .targets = of.targets,
                                .losses = of.losses,
                                .has_gradient = of.gradient_weight.has_value(),
                                .weight = static_cast<float>(of.gradient_weight.value_or(0))};
    memory::start_kernel(
        {.file = "model/gpu_loss.cu",
         .kernel = of.dtype == Dtype::fp32 ? "model::cross_entropies<float>"
                                           : "model::cross_entropies<std::uint16_t>",
         .blocks = static_cast<unsigned>(of.tokens),
         .threads = kLossThreads},
        stream, arguments);
}

}  // namespace nearstep::model
