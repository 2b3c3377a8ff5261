// Parameter groups as words of the updater's table. Used by CardDevice for each update.
#include "csd/card_groups.hpp"

#include "base/error.hpp"
#include "fpga/kernel/group_table.hpp"

#include <algorithm>
#include <array>
#include <span>

namespace nearstep::csd {

namespace {

using shard::kTileElems;
using shard::TileRange;

static_assert(kMostGroupsOfCard == fpga::kMostParameterGroups, "the updater has all groups");

std::span<const GroupRun> runs_of(const GroupMap& groups, TileRange tiles) {
    return groups.runs_in(tiles.begin * kTileElems, tiles.end * kTileElems);
}

// A run that ends in this tile or at its end.
std::uint32_t run_in_tile(const GroupRun& run, std::size_t tile) {
    expects(run.group < kMostGroupsOfCard, "an updater has at most 16 parameter groups");
    const std::size_t end = std::min(run.end - tile * kTileElems, kTileElems);
    return fpga::group_run(static_cast<std::uint32_t>(end / fpga::kRunElems),
                           static_cast<std::uint32_t>(run.group));
}

std::vector<std::uint32_t> runs_by_tile(const GroupMap& groups, TileRange tiles) {
    std::vector<std::uint32_t> runs;
    for (std::size_t tile = tiles.begin; tile < tiles.end; ++tile) {
        for (const GroupRun& run : runs_of(groups, {tile, tile + 1})) {
            runs.push_back(run_in_tile(run, tile));
        }
    }
    return runs;
}

std::size_t words_of_runs(std::size_t runs) {
    return (runs + fpga::kWordUnits - 1) / fpga::kWordUnits;
}

// Groups without an element here count as skipped, so that their moments are not read.
void fill_scalars(const GroupMap& groups, const StepScalars& scalars, TileRange tiles,
                  std::span<fpga::Word> words) {
    std::array<bool, kMostGroupsOfCard> is_idle{};
    is_idle.fill(true);
    for (const GroupRun& run : runs_of(groups, tiles)) {
        is_idle.at(run.group) = scalars.is_skipped.at(run.group);
    }
    for (std::size_t group = 0; group < kMostGroupsOfCard; ++group) {
        words[group] = fpga::group_word(scalars.of_group.at(group), is_idle.at(group));
    }
}

}  // namespace

std::optional<std::size_t> find_uneven_end(const GroupMap& groups, TileRange tiles) {
    for (const GroupRun& run : runs_of(groups, tiles)) {
        if (run.end < tiles.end * kTileElems && run.end % fpga::kRunElems != 0) {
            return run.end;
        }
    }
    return std::nullopt;
}

std::size_t group_table_words(const GroupMap& groups, TileRange tiles) {
    // Every tile has at least one run, and each end inside the tiles may add another.
    return kMostGroupsOfCard + words_of_runs(tiles.size() + runs_of(groups, tiles).size() - 1);
}

GroupTable group_table(const GroupMap& groups, const StepScalars& scalars, TileRange tiles) {
    const std::span<const GroupRun> all = runs_of(groups, tiles);
    const std::size_t first = all.front().group;
    GroupTable table;
    table.scalars = scalars.of_group.at(first);
    table.scalars.random_key = scalars.random_key;
    if (all.size() == 1 && !scalars.is_skipped.at(first)) {
        return table;
    }
    const std::vector<std::uint32_t> runs = runs_by_tile(groups, tiles);
    table.runs = static_cast<std::uint32_t>(runs.size());
    table.words.assign(kMostGroupsOfCard + words_of_runs(runs.size()), fpga::Word{});
    fill_scalars(groups, scalars, tiles, table.words);
    for (std::uint32_t run = 0; run < table.runs; ++run) {
        table.words[fpga::word_of_run(run)].of[fpga::unit_of_run(run)] = runs[run];
    }
    return table;
}

}  // namespace nearstep::csd
