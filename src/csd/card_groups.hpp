// Parameter groups in the form a card's updater takes (fpga/kernel/group_table.hpp).
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

// The first element in the tiles where a run ends and the updater cannot end it; nullopt if none.
std::optional<std::size_t> find_uneven_end(const GroupMap& groups, shard::TileRange tiles);

// Most words in the table of these tiles. Requires that find_uneven_end() returns nullopt for them.
std::size_t group_table_words(const GroupMap& groups, shard::TileRange tiles);

// Group arguments of one launch.
struct GroupTable {
    UpdateScalars scalars;          // of the only group, if there are no runs
    std::vector<fpga::Word> words;  // empty without runs
    std::uint32_t runs = 0;
};

GroupTable group_table(const GroupMap& groups, const StepScalars& scalars, shard::TileRange tiles);

}  // namespace nearstep::csd
