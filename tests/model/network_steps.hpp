// Runs training steps of tiny networks for tests.
#pragma once

#include "base/random.hpp"
#include "model/geometry.hpp"
#include "model/network.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace nearstep::model {

using Floats = std::vector<float>;
using Tokens = std::vector<std::int32_t>;

inline config::ModelSettings tiny(Dtype dtype = Dtype::fp32,
                                  config::ProductFormat compute = config::ProductFormat::fp32) {
    return {.layers = 2,
            .heads = 2,
            .width = 16,
            .context = 8,
            .vocabulary = 23,
            .dtype = dtype,
            .compute = compute};
}

// Two attention heads for each head of keys and values, biases, its own output weights.
inline config::ModelSettings tiny_llama(
    Dtype dtype = Dtype::fp32, config::ProductFormat compute = config::ProductFormat::fp32) {
    config::ModelSettings settings = tiny(dtype, compute);
    settings.architecture = config::ModelFamily::llama;
    settings.heads = 4;
    settings.kv_heads = 2;
    settings.hidden = 24;
    settings.tied = false;
    settings.qkv_bias = true;
    return settings;
}

// Initial values plus normal noise, so that no bias is 0 and no norm weight is 1.
inline Floats values_for(const config::ModelSettings& settings) {
    const Geometry geometry = describe(settings);
    Floats values(geometry.elems);
    fill_start_values(geometry, 1, 0, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] += static_cast<float>(0.1 * random_normal(2, 0, i));
    }
    return values;
}

inline std::vector<std::byte> encode(const Floats& values, Dtype dtype) {
    std::vector<std::byte> bytes(values.size() * size_bytes(dtype));
    convert_from_fp32(values.data(), dtype, bytes.data(), values.size());
    return bytes;
}

struct Rows {
    int rows = 0;
    int columns = 0;
    Tokens tokens = {};
    Tokens targets = {};

    MicroBatch view() const { return {rows, columns, tokens, targets}; }
};

inline Rows draw(int rows, int columns, std::uint64_t seed, int vocabulary) {
    Rows drawn{.rows = rows, .columns = columns};
    for (int i = 0; i < rows * columns; ++i) {
        const auto index = static_cast<std::uint64_t>(i);
        drawn.tokens.push_back(
            static_cast<std::int32_t>(random_uniform(seed, 0, index) * vocabulary));
        drawn.targets.push_back(
            static_cast<std::int32_t>(random_uniform(seed, 1, index) * vocabulary));
    }
    return drawn;
}

struct Step {
    double loss = 0;
    Floats gradient;
};

// Runs one step through all blocks; the loss is the mean over all tokens.
inline Step run_step(Network& network, const std::vector<Rows>& rows, double loss_scale = 1) {
    std::vector<MicroBatch> batches;
    std::size_t tokens = 0;
    for (const Rows& part : rows) {
        batches.push_back(part.view());
        tokens += part.tokens.size();
    }
    const Geometry& geometry = network.geometry();
    Step step{.loss = 0,
              .gradient = Floats(geometry.elems, std::numeric_limits<float>::quiet_NaN())};
    network.begin(batches, tokens > 0 ? 1.0 / static_cast<double>(tokens) : 1.0, loss_scale);
    const int blocks = static_cast<int>(geometry.blocks.size());
    for (int block = 0; block < blocks; ++block) {
        network.forward(block);
    }
    step.loss = network.loss();
    for (int block = blocks - 1; block >= 0; --block) {
        const Block& range = geometry.blocks[static_cast<std::size_t>(block)];
        network.backward(block,
                         std::span(step.gradient).subspan(range.begin, range.end - range.begin));
    }
    return step;
}

inline Step run_step(const config::ModelSettings& settings, const Floats& values,
                     const std::vector<Rows>& rows, double loss_scale = 1) {
    const std::vector<std::byte> bytes = encode(values, settings.dtype);
    return run_step(*Network::make(settings, bytes), rows, loss_scale);
}

}  // namespace nearstep::model
