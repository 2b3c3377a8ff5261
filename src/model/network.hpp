// A network run block by block: forward keeps block inputs only, backward recomputes one block at a
// time and hands its gradient over at once. All micro-batches of a step pass a block before the
// next block, so a block's gradient is final after one visit and its parameters are needed twice a
// step.
#pragma once

#include "config/run.hpp"
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

// Where a gradient is to be written; the GPU is that of the network.
enum class GradientPlace { host, gpu };

// What crossed the link between the network's device and host memory so far, or would if it were a
// GPU.
struct NetworkTraffic {
    std::size_t parameter_bytes = 0;  // brought, without what came from other GPUs
    std::size_t input_bytes = 0;      // of blocks, out and back in

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
// blocks descending. What a block reads of `parameters` may change until fetch() or forward() of
// it, and again after the step's last backward.
class Network {
public:
    // `parameters`: the parameter vector, geometry.elems elements of settings.dtype or more
    // (padding); owned by the caller, outlives the network. `joint`: who brings a step's blocks to
    // GPUs with this rank, from vectors that hold the same; then begin, fetch, forward and backward
    // are collective among them. On the CPU nobody.
    static std::unique_ptr<Network> make(const config::ModelSettings& settings,
                                         std::span<const std::byte> parameters,
                                         const ComputeDevice& device = {},
                                         const Residence& residence = {},
                                         const feed::JointCopy& joint = {});

    virtual ~Network() = default;

    virtual const Geometry& geometry() const = 0;

    // What forward of the block reads of the parameters, and backward of all blocks but the last,
    // which reads none: the block's own, and what it borrows of others or, unless parameters are
    // read in place, all of those blocks.
    virtual std::vector<Elements> reads(int block) const = 0;

    // Copies the tokens. The loss is `token_weight` times the sum of the tokens' cross entropies
    // (nats); with token_weight = 1 / tokens of all ranks, the ranks' losses and gradients add up
    // to the mean's. Gradients come out times `loss_scale`.
    virtual void begin(std::span<const MicroBatch> batches, double token_weight,
                       double loss_scale) = 0;

    // The block's parameters are final in the vector until the step ends: starts their way to the
    // GPU, as soon as there is room. After begin(). Where parameters are read in place nothing
    // happens. Of a block of which this is not said they must be in the vector whenever it is
    // visited, with those that it borrows.
    virtual void fetch(int block) = 0;

    virtual void forward(int block) = 0;

    // Valid after forward of the last block; without loss_scale.
    virtual double loss() const = 0;

    // `gradient`: the elements of the block, overwritten with the sum over the micro-batches, fp32.
    // In the GPU's memory they are written in the order of its default stream, and this returns at
    // once.
    virtual void backward(int block, std::span<float> gradient,
                          GradientPlace place = GradientPlace::host) = 0;

    // Sum of the tokens' cross entropies in nats; keeps nothing, and must stand outside a step.
    virtual double evaluate(const MicroBatch& batch) = 0;

    // The `count` tokens that continue `prompt`, drawn at `temperature` (> 0), reproducibly by
    // `seed`.
    virtual std::vector<std::int32_t> sample(std::span<const std::int32_t> prompt, int count,
                                             double temperature, std::uint64_t seed) = 0;

    virtual NetworkTraffic traffic() const = 0;
};

// One line on the tensor library and how it computes here: "torch 2.13.0, bf16 products on the
// CPU".
std::string describe_backend(const config::ModelSettings& settings,
                             const ComputeDevice& device = {});

}  // namespace nearstep::model
