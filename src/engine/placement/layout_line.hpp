// The line of a manifest that names the layout, written and read.
#pragma once

#include "csd/state_format.hpp"
#include "engine/placement/placed_settings.hpp"
#include "shard/ownership.hpp"
#include "shard/partition.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::engine {

// Digest of which device owns which tiles in which subgroups, 16 hexadecimal digits.
std::string digest_of_tiles(const shard::Partition& partition);

// "ranks=2 devices=1,1 ...": everything that determines where each tile's state lies in the rank's
// copy. State files fit a run if the lines are equal.
std::string layout_line(const PlacedSettings& settings, int ranks, const shard::Replica& copy);

// The line as layout_line() writes it. Version 0.2.0 wrote a number for each rank and device.
std::string brief_layout(const std::string& layout);

// The line of the same layout in which each subgroup has two places of its own.
std::string without_spare_places(const std::string& layout);

// The values in a layout line. All of them are numbers that a run may have.
struct LayoutValues {
    int ranks = 0;
    std::vector<int> devices = {};    // of each rank
    std::vector<double> speeds = {};  // of each device
    std::vector<int> nodes = {};      // of each rank; empty: all are in one
    std::size_t subgroup_tiles = 0;
    std::size_t spare_places = 0;
    std::size_t logs = 1;
    bool is_on_host = false;  // where the update happens
    csd::StateFormat state = csd::StateFormat::fp32;
    std::string tiles_xxh3 = {};
};

// nullopt unless the line is one that layout_line() could have made.
std::optional<LayoutValues> parse_layout(const std::string& layout);

}  // namespace nearstep::engine
