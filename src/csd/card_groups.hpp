// Parameter groups as a card's updater takes them (fpga/kernel/group_table.hpp).
#pragma once

#include "csd/group_map.hpp"
#include "csd/step_scalars.hpp"
#include "fpga/kernel/word.hpp"
#include "shard/partition.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace nearstep::csd {

// The element of the tiles where a run ends that the updater cannot end there; nullopt: none.
std::optional<std::size_t> find_uneven_end(const GroupMap& groups, shard::TileRange tiles);

// Words of the table of these tiles at most; find_uneven_end() has nothing to say of them.
std::size_t group_table_words(const GroupMap& groups, shard::TileRange tiles);

// What one launch is given.
struct GroupTable {
    UpdateScalars scalars;          // where there are no runs: of the only group
    std::vector<fpga::Word> words;  // empty without runs
    std::uint32_t runs = 0;
};

GroupTable group_table(const GroupMap& groups, const StepScalars& scalars, shard::TileRange tiles);

}  // namespace nearstep::csd
