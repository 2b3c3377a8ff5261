// The table of architectures and what they share. Used by geometry.cpp and network.cpp.
#include "model/architecture.hpp"

#include "base/error.hpp"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace nearstep::model {

// Each architecture is defined in families/.
extern const Architecture gpt_architecture;
extern const Architecture llama_architecture;

namespace {

// The architectures are in the order of config::ModelFamily.
constexpr std::array<const Architecture*, kWords<config::ModelFamily>.size()> kArchitectures{
    &gpt_architecture, &llama_architecture};

}  // namespace

const Architecture& architecture_of(config::ModelFamily network) {
    return *kArchitectures.at(index_of(network));
}

int block_of(const Geometry& geometry, std::size_t parameter) {
    int block = 0;
    while (parameter >= geometry.blocks.at(static_cast<std::size_t>(block)).last_parameter) {
        ++block;
    }
    return block;
}

std::vector<feed::Visit> blocks_read(const Geometry& geometry,
                                     const std::vector<BlockFunction>& functions) {
    std::vector<feed::Visit> reads;
    for (const BlockFunction& function : functions) {
        feed::Visit& visit = reads.emplace_back(1, static_cast<int>(reads.size()));
        for (const std::size_t parameter : function.borrowed) {
            const int block = block_of(geometry, parameter);
            if (std::ranges::count(visit, block) == 0) {
                visit.push_back(block);
            }
        }
    }
    return reads;
}

void append_block(Geometry& geometry, std::string name) {
    const std::size_t parameters = geometry.parameters.size();
    geometry.blocks.push_back({.name = std::move(name),
                               .begin = geometry.elems,
                               .end = geometry.elems,
                               .first_parameter = parameters,
                               .last_parameter = parameters});
}

void append_parameter(Geometry& geometry, std::string name, std::vector<std::int64_t> shape,
                      StartRule start) {
    std::size_t elems = 1;
    for (const std::int64_t extent : shape) {
        elems *= static_cast<std::size_t>(extent);
    }
    geometry.parameters.push_back({.name = std::move(name),
                                   .shape = std::move(shape),
                                   .offset = geometry.elems,
                                   .elems = elems,
                                   .start = start});
    geometry.elems += elems;
    geometry.blocks.back().end = geometry.elems;
    geometry.blocks.back().last_parameter = geometry.parameters.size();
}

Starts starts_for(int layers) {
    constexpr double kDeviation = 0.02;
    return {.zero = {.deviation = 0, .value = 0},
            .one = {.deviation = 0, .value = 1},
            .weight = {.deviation = kDeviation, .value = 0},
            .residual = {.deviation = kDeviation / std::sqrt(2.0 * layers), .value = 0}};
}

void append_output_weights(Geometry& geometry, const config::ModelSettings& settings) {
    if (!settings.tied) {
        append_parameter(geometry, kOutputWeights, {settings.vocabulary, settings.width},
                         starts_for(settings.layers).weight);
    }
}

std::vector<BlockFunction> decoder_functions(const config::ModelSettings& settings,
                                             ValueFunction embedding, const BlockFunction& layer,
                                             ValueFunction head) {
    const auto whole = [](ValueFunction function) {
        return [function = std::move(function)](const auto& parameters, const at::Tensor& input,
                                                OutputUse /*use*/) {
            return function(parameters, input);
        };
    };
    std::vector<BlockFunction> functions;
    functions.push_back(
        {.run = whole(std::move(embedding)), .borrowed = {}, .format = BlockFormat::fp32});
    functions.insert(functions.end(), static_cast<std::size_t>(settings.layers), layer);
    std::vector<std::size_t> borrowed;
    if (settings.tied) {
        borrowed = {0};
    }
    functions.push_back({.run = whole(std::move(head)), .borrowed = std::move(borrowed)});
    return functions;
}

}  // namespace nearstep::model
