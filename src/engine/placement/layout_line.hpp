// Reads layout lines, see layout_line() in engine/placement/devices.hpp.
#pragma once

#include "csd/state_format.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::engine {

// What a layout line says. All numbers are ones that a run may have.
struct LayoutValues {
    int ranks = 0;
    std::vector<int> devices = {};    // of each rank
    std::vector<double> speeds = {};  // of each device
    std::size_t subgroup_tiles = 0;
    bool is_on_host = false;  // where the update happens
    csd::StateFormat state = csd::StateFormat::fp32;
    std::string tiles_xxh3 = {};
};

// nullopt unless the line is one that layout_line() could have made.
std::optional<LayoutValues> parse_layout(const std::string& layout);

}  // namespace nearstep::engine
