// The known architectures, each with its parameters and its block functions. A new one (BERT,
// BLOOM, ViT) is one more row in the table of architecture.cpp; runner and trainer do not change.
#pragma once

#include "config/run.hpp"
#include "feed/fetch_order.hpp"
#include "model/block_function.hpp"
#include "model/geometry.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nearstep::model {

struct Architecture {
    std::string_view name;
    Geometry (*describe)(const config::ModelSettings& settings);
    // Makes one function per block of the geometry. The last one's output is the logits.
    std::vector<BlockFunction> (*make_functions)(const config::ModelSettings& settings);
};

// Throws ConfigError with the known names if `name` is unknown.
const Architecture& find_architecture(const std::string& name);

// The block that owns the parameter with this index.
int block_of(const Geometry& geometry, std::size_t parameter);

// The blocks whose parameters each block reads: itself first, then the blocks it borrows from.
std::vector<feed::Visit> blocks_read(const Geometry& geometry,
                                     const std::vector<BlockFunction>& functions);

// For describe functions: append a block to the geometry, and a parameter to the last block.
void append_block(Geometry& geometry, std::string name);
void append_parameter(Geometry& geometry, std::string name, std::vector<std::int64_t> shape,
                      Start start);

}  // namespace nearstep::model
