// A network that runs block by block. Forward keeps what the backward of some blocks needs, and of
// the others only their inputs: backward recomputes those one at a time. It hands each block's
// gradient over at once. All micro-batches of a step pass through a block before the next block, so
// a block's gradient is final after one visit, and its parameters are needed twice per step.
#pragma once

#include "config/run_settings.hpp"
#include "feed/block_parts.hpp"
#include "model/compute_device.hpp"
#include "model/geometry.hpp"
#include "model/residence.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace nearstep::model {

// Token rows of one rank. tokens and targets: rows x columns, row-major, values below the
// vocabulary.
struct MicroBatch {
    int rows = 0;
    int columns = 0;
    std::span<const std::int32_t> tokens;
    std::span<const std::int32_t> targets;
};

// Throws Error unless all are in [0, model.vocabulary).
void check_tokens(std::span<const std::int32_t> tokens, const config::ModelSettings& settings);

// Checks a micro-batch's tokens and targets, and that its sizes agree and fit model.context.
void check_batch(const MicroBatch& batch, const config::ModelSettings& settings);

// Where a gradient is written; `gpu` is the network's GPU.
enum class GradientPlace { host, gpu };

// Bytes copied so far between host memory and the network's device. On the CPU, copies to slots
// and to host buffers are counted the same way.
struct NetworkTraffic {
    std::size_t parameter_bytes = 0;  // copied from host memory, not from other GPUs
    std::size_t input_bytes = 0;      // block inputs, out and back in

    NetworkTraffic operator-(const NetworkTraffic& before) const {
        return {parameter_bytes - before.parameter_bytes, input_bytes - before.input_bytes};
    }
    NetworkTraffic& operator+=(const NetworkTraffic& more) {
        parameter_bytes += more.parameter_bytes;
        input_bytes += more.input_bytes;
        return *this;
    }
};

// Use from one thread. A step is: begin, forward of all blocks ascending, loss, backward of all
// blocks descending. The parameters that a block reads may change until its fetch() or forward(),
// and again after the step's last backward.
class Network {
public:
    // `parameters`: the parameter vector, at least geometry.elems elements of settings.dtype (more
    // is padding). The caller owns it, and it outlives the network. `joint`: the ranks that copy a
    // step's blocks to their GPUs together, from equal vectors. Then begin, fetch, forward and
    // backward are collective among these ranks. On the CPU it is not used.
    static std::unique_ptr<Network> make(const config::ModelSettings& settings,
                                         std::span<const std::byte> parameters,
                                         const ComputeDevice& device = {},
                                         const Residence& residence = {},
                                         const feed::JointCopy& joint = {});

    virtual ~Network() = default;

    virtual const Geometry& geometry() const = 0;

    // The parameters that the block's forward reads, and its backward unless it is the last block:
    // its own and the borrowed ones. If parameters are not read in place, a borrowed parameter
    // counts as its owner's whole block.
    virtual std::vector<Elements> reads(int block) const = 0;

    // Copies the tokens. The loss is `token_weight` times the sum of the tokens' cross entropies
    // (nats). With token_weight = 1 / tokens of all ranks, the ranks' losses and gradients add up
    // to those of the mean. Gradients are multiplied by `loss_scale`.
    virtual void begin(std::span<const MicroBatch> batches, double token_weight,
                       double loss_scale) = 0;

    // Call after begin() when the block's parameters are final in the vector until the step ends.
    // Starts copying them to the GPU as soon as there is room; does nothing if parameters are read
    // in place. Without this call, the parameters that a block reads must be in the vector at each
    // visit of the block.
    virtual void fetch(int block) = 0;

    virtual void forward(int block) = 0;

    // Valid after forward of the last block. Excludes loss_scale.
    virtual double loss() const = 0;

    // Overwrites `gradient`, the block's elements in fp32, with the sum over the micro-batches. A
    // gradient in GPU memory is written on the GPU's default stream, and the call returns at once.
    virtual void backward(int block, std::span<float> gradient,
                          GradientPlace place = GradientPlace::host) = 0;

    // Sum of the tokens' cross entropies in nats. Keeps nothing. Must not be called during a step.
    virtual double evaluate(const MicroBatch& batch) = 0;

    // Draws `count` tokens that continue `prompt`, at `temperature` (> 0), reproducibly for `seed`.
    virtual std::vector<std::int32_t> sample(std::span<const std::int32_t> prompt, int count,
                                             double temperature, std::uint64_t seed) = 0;

    virtual NetworkTraffic traffic() const = 0;
};

// The tensor library and how it computes here: "torch 2.13.0, bf16 products on the CPU".
std::string describe_backend(const config::ModelSettings& settings,
                             const ComputeDevice& device = {});

}  // namespace nearstep::model
