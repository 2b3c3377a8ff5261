// The update rules, and the formats of state, codes and deltas, by number. C++14.
#pragma once

#include <cstdint>

namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace arith {

// adamw: Loshchilov and Hutter, "Decoupled weight decay regularization" (2019).
// adam: Kingma and Ba, "Adam" (2015); weight decay is added to the gradient (L2).
// sgd: momentum beta1 without dampening: moment1 = beta1 * moment1 + gradient; L2.
// adagrad: Duchi, Hazan and Singer, "Adaptive subgradient methods" (2011); moment2 is the sum of
//   squares; L2.
// lion: Chen et al., "Symbolic discovery of optimization algorithms" (2023); decoupled decay.
enum class Optimizer : std::uint8_t { adamw, adam, sgd, adagrad, lion };
constexpr Optimizer kLastOptimizer = Optimizer::lion;

// fp32: master and moments fp32.
// bf16: master fp32, moments bf16 with stochastic rounding.
// q8: master fp32, moments in 8 bits with an fp32 scale per block.
// compact: master bf16 with stochastic rounding, moments as in q8.
enum class StateFormat : std::uint8_t { fp32, bf16, q8, compact };

// How codes of gradients are rounded.
enum class Rounding : std::uint8_t { nearest, stochastic };

// How a tile of a delta is written (docs/formats/parameter-payload.md).
enum class DeltaForm : std::uint32_t { dense, bitmap, units, codes, list };
constexpr std::uint32_t kDeltaForms = 5;

}  // namespace arith
}  // namespace nearstep
