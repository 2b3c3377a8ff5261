// Chooses the device that a rank computes on and its format, measures it, and makes torch repeat
// its bits. Called by the trainer.
#include "model/compute_device.hpp"

#include "base/error.hpp"
#include "base/stopwatch.hpp"
#include "model/torch_types.hpp"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/cuda.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <mutex>

namespace nearstep::model {

namespace {

// One row of this size runs on one thread. Vector functions give each thread at least 2,048
// elements; normalisation and attention give each thread whole rows.
constexpr std::int64_t kElems = 64;

// All functions that torch takes from MKL (ATen/cpu/vml.h), for fp32 and fp64.
void call_vector_functions(at::ScalarType type) {
    const at::Tensor values = at::full({kElems}, 0.5, type);
    for (auto* function :
         {at::acos, at::asin, at::atan, at::cos, at::erf, at::erfc, at::erfinv, at::exp, at::log,
          at::log10, at::log2, at::sin, at::sqrt, at::tan, at::tanh, at::trunc}) {
        function(values);
    }
}

// The layers of our networks (gpt.cpp, llama.cpp, loss.cpp, sampling) and of common Python models,
// with their backward.
void call_layers(at::ScalarType type) {
    const c10::AutoGradMode with_grad(true);
    const at::Tensor input = at::full({1, kElems}, 0.5, type).requires_grad_(true);
    const at::Tensor weight = at::full({kElems, kElems}, 0.1, type).requires_grad_(true);
    const at::Tensor scale = at::ones({kElems}, type).requires_grad_(true);
    const at::Tensor shift = at::zeros({kElems}, type).requires_grad_(true);
    const at::Tensor normed = at::layer_norm(input, {kElems}, scale, shift);
    const at::Tensor product = at::addmm(shift, normed, weight);
    const at::Tensor hidden = at::gelu(product, "tanh") + at::gelu(product, "none") +
                              at::silu(at::rms_norm(product, {kElems}, scale));
    const at::Tensor heads = hidden.view({1, 1, 1, kElems});
    const at::Tensor mixed =
        at::scaled_dot_product_attention(heads, heads, heads, {}, 0.0, /*is_causal=*/true)
            .view({1, kElems});
    const at::Tensor shares = at::log_softmax(mixed, 1) + at::softmax(mixed, 1);
    torch::autograd::grad({shares.sum()}, {input, weight, scale, shift});
}

// Calls each library once on this thread; a second call does nothing. Must return before torch
// computes with several threads in this process: a library that initialises itself in its first
// call may give different, less accurate bits if several threads make that call together.
//   MKL's vector functions (exp, erf, tanh, ...) do so: without this, about one process in 400 on a
//     loaded machine computed part of the loss's first exp with another kernel.
//   MKL's and oneDNN's products are called from several threads by attention. They are not known
//     to differ; oneDNN creates kernels under a lock.
// GPU libraries do not need this: torch creates each thread's cuBLAS handle under a lock, with a
// workspace for each stream, and we take no random numbers from cuRAND (base/random.hpp).
void make_first_calls() {
    static std::once_flag are_made;
    std::call_once(are_made, [] {
        call_vector_functions(at::kFloat);
        call_vector_functions(at::kDouble);
        for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
            call_layers(type);
        }
    });
}

constexpr std::int64_t kLeast = 256;
constexpr std::int64_t kMost = 4096;

// The best rate of `times` products of square matrices with `size` rows.
double rate_of(std::int64_t size, int times, const at::TensorOptions& options) {
    const at::Tensor left = at::full({size, size}, 0.5, options);
    const at::Tensor right = at::full({size, size}, 0.5, options);
    const double operations = 2 * std::pow(static_cast<double>(size), 3);
    double best = 0;
    for (int i = 0; i < times; ++i) {
        Stopwatch watch;
        at::matmul(left, right)[0][0].item<float>();  // waits for a GPU
        best = std::max(best, operations / watch.lap());
    }
    return best;
}

constexpr std::int64_t kCopiedBytes = 256 << 20;

double copy_rate(const at::Tensor& from, const at::Tensor& to) {
    double best = 0;
    for (int i = 0; i < 3; ++i) {
        Stopwatch watch;
        to.copy_(from);
        to[0].item<int>();  // waits for a GPU
        best = std::max(best, static_cast<double>(kCopiedBytes) / watch.lap());
    }
    return best;
}

}  // namespace

ComputeDevice choose_device(config::Processor wanted, int local_rank) {
    if (wanted == config::Processor::cpu) {
        return {};
    }
    const at::DeviceIndex gpus = torch::cuda::device_count();
    if (gpus > 0) {
        return {.gpu = local_rank % gpus};
    }
    if (wanted == config::Processor::cuda) {
        throw ConfigError(
            "model.device is \"cuda\" and PyTorch finds no GPU here: run where there is one, with "
            "a "
            "CUDA build of PyTorch, or set model.device to \"cpu\".");
    }
    return {};
}

void repeat_bit_for_bit(const ComputeDevice& device) {
    make_first_calls();
    if (device.is_gpu()) {
        // Attention obeys this only as an error, not as a warning. Then the backward of flash and
        // memory-efficient attention sums in a fixed order, and cuDNN's, which does not, is not
        // used. Torch reads the cuBLAS variable at its first product; it gives every stream its
        // own workspace. Filling fresh memory is off because it costs a pass.
        ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
        at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
        at::globalContext().setDeterministicFillUninitializedMemory(false);
    }
}

Dtype compute_format(const config::ModelSettings& settings, const ComputeDevice& device) {
    using config::ProductFormat;
    const ProductFormat compute = settings.compute;
    if (compute == ProductFormat::bf16 && settings.dtype == Dtype::fp16) {
        throw ConfigError(
            "model.compute is bf16 and model.dtype is fp16, whose digits bf16 would drop: set "
            "model.compute to fp32 or model.dtype to bf16.");
    }
    if (compute == ProductFormat::automatic && device.is_gpu()) {
        return settings.dtype;
    }
    const bool is_fast = settings.dtype == Dtype::bf16 && __builtin_cpu_supports("avx512bf16") != 0;
    return compute == ProductFormat::bf16 || (compute == ProductFormat::automatic && is_fast)
               ? Dtype::bf16
               : Dtype::fp32;
}

double measure_product_rate(const ComputeDevice& device, Dtype compute) {
    const auto options =
        at::TensorOptions().dtype(scalar_type(compute)).device(torch_device(device));
    const double estimate = rate_of(kLeast, 2, options);
    // A product of about 2 ms.
    const auto size = static_cast<std::int64_t>(std::cbrt(estimate * 2e-3 / 2)) / 64 * 64;
    return rate_of(std::clamp(size, kLeast, kMost), 3, options);
}

double measure_memory_rate(const ComputeDevice& device) {
    const auto there = at::TensorOptions().dtype(at::kByte).device(torch_device(device));
    const at::Tensor from = at::ones({kCopiedBytes}, there);
    return 2 * copy_rate(from, at::ones({kCopiedBytes}, there));
}

double measure_link_rate(const ComputeDevice& device) {
    const auto host = at::TensorOptions().dtype(at::kByte).pinned_memory(device.is_gpu());
    const at::Tensor from = at::ones({kCopiedBytes}, host);
    return copy_rate(
        from, at::ones({kCopiedBytes}, host.pinned_memory(false).device(torch_device(device))));
}

}  // namespace nearstep::model
