// The choices that settings offer. `automatic` is the word "auto".
#pragma once

#include "arith/formats.hpp"
#include "base/words.hpp"

#include <array>
#include <cstdint>

namespace nearstep {

namespace config {

// Where the update happens and what crosses the host link; the paper's BASE, SU, SU+O and SU+O+C.
enum class Mode : std::uint8_t { base, su, su_o, su_o_c };

enum class ModelFamily : std::uint8_t { gpt, llama };
enum class Processor : std::uint8_t { automatic, cpu, cuda };
enum class ProductFormat : std::uint8_t { automatic, bf16, fp32 };
// Where backward finds the activations of a layer.
enum class Activations : std::uint8_t { automatic, all, gpu, host };

// The parameters that have weight decay. Matrices are tensors of two or more dimensions.
enum class Decay : std::uint8_t { all, matrices };
// Gradients are clipped by the norm of this step, or of the previous one.
enum class Clipping : std::uint8_t { exact, delayed };

// emulated: on the host's cores and, for state in memory, on the rank's GPU; host: on its cores
// alone.
enum class DeviceKind : std::uint8_t { emulated, host, xrt };
// The steps that survive a crash.
enum class Durability : std::uint8_t { step, checkpoint, none };
enum class IoKind : std::uint8_t { automatic, io_uring, threads };

// The transfers of GPUs that cross a shaped host link: none, all of them once per rank, or all of
// them once.
enum class GpuLinkUse : std::uint8_t { apart, whole, split };

enum class PayloadCodec : std::uint8_t { dense, q8, q4, topk, automatic };
// Whether the codec has codes that compress.rounding rounds.
constexpr bool has_codes(PayloadCodec codec) {
    return codec == PayloadCodec::q8 || codec == PayloadCodec::q4;
}
enum class ParameterCodec : std::uint8_t { dense, delta };

// Words for a number of ranks: one, those of a node, all.
enum class GroupWord : std::uint8_t { replicated, node, global, automatic };

enum class Densify : std::uint8_t { automatic, always, never };
// Between GPUs; host: gradients are also encoded there, parameters as automatic.
enum class GpuPath : std::uint8_t { automatic, mpi, nccl, host };

using nearstep::name_of;

}  // namespace config

template <>
inline constexpr std::array kWords<arith::Optimizer> = {"adamw", "adam", "sgd", "adagrad", "lion"};
static_assert(kWords<arith::Optimizer>.size() == index_of(arith::kLastOptimizer) + 1);
template <>
inline constexpr std::array kWords<arith::StateFormat> = {"fp32", "bf16", "q8", "compact"};
template <>
inline constexpr std::array kWords<arith::Rounding> = {"nearest", "stochastic"};
template <>
inline constexpr std::array kWords<config::Mode> = {"base", "su", "su+o", "su+o+c"};
template <>
inline constexpr std::array kWords<config::ModelFamily> = {"gpt", "llama"};
template <>
inline constexpr std::array kWords<config::Processor> = {"auto", "cpu", "cuda"};
template <>
inline constexpr std::array kWords<config::ProductFormat> = {"auto", "bf16", "fp32"};
template <>
inline constexpr std::array kWords<config::Activations> = {"auto", "all", "gpu", "host"};
template <>
inline constexpr std::array kWords<config::Decay> = {"all", "matrices"};
template <>
inline constexpr std::array kWords<config::Clipping> = {"exact", "delayed"};
template <>
inline constexpr std::array kWords<config::DeviceKind> = {"emulated", "host", "xrt"};
template <>
inline constexpr std::array kWords<config::Durability> = {"step", "checkpoint", "none"};
template <>
inline constexpr std::array kWords<config::IoKind> = {"auto", "io_uring", "threads"};
template <>
inline constexpr std::array kWords<config::GpuLinkUse> = {"apart", "whole", "split"};
template <>
inline constexpr std::array kWords<config::PayloadCodec> = {"dense", "q8", "q4", "topk", "auto"};
template <>
inline constexpr std::array kWords<config::ParameterCodec> = {"dense", "delta"};
template <>
inline constexpr std::array kWords<config::GroupWord> = {"replicated", "node", "global", "auto"};
template <>
inline constexpr std::array kWords<config::Densify> = {"auto", "always", "never"};
template <>
inline constexpr std::array kWords<config::GpuPath> = {"auto", "mpi", "nccl", "host"};

}  // namespace nearstep
