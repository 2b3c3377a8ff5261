// The architectures there are: for each its parameters and its block functions. A new one (BERT,
// BLOOM, ViT) is a further row of the table in architecture.cpp; runner and trainer stay as they
// are.
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
    // One function per block of the geometry. The last one's output is the logits.
    std::vector<BlockFunction> (*make_functions)(const config::ModelSettings& settings);
};

// Throws ConfigError naming the architectures there are.
const Architecture& find_architecture(const std::string& name);

// The block that the parameter of this index belongs to.
int block_of(const Geometry& geometry, std::size_t parameter);

// The blocks whose parameters each block reads: its own first, then those that it borrows of.
std::vector<feed::Visit> blocks_read(const Geometry& geometry,
                                     const std::vector<BlockFunction>& functions);

// For the describe functions: opens a block at the end of the geometry, and adds a parameter to it.
void append_block(Geometry& geometry, std::string name);
void append_parameter(Geometry& geometry, std::string name, std::vector<std::int64_t> shape,
                      Start start);

}  // namespace nearstep::model
