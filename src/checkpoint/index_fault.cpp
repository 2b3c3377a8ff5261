// Checks what an index says before it is used or written. Used by index.cpp and checkpoint.cpp.
#include "base/error.hpp"
#include "checkpoint/checkpoint_files.hpp"
#include "checkpoint/index.hpp"
#include "checkpoint/rank_file.hpp"
#include "checkpoint/tensor_extent.hpp"

#include <algorithm>
#include <limits>

namespace nearstep::checkpoint {

namespace {

using shard::TileRange;

constexpr std::size_t kStateBytes = kArrays * shard::kTileElems * sizeof(float);

bool is_inside(const TensorPlace& tensor, std::size_t parameters) {
    return tensor.offset < parameters && !tensor.name.empty() &&
           tensor.name.find('/') == std::string::npos &&
           elems_within(tensor.shape, parameters - tensor.offset);
}

bool is_rank_file(const std::string& name) {
    const std::optional<FileName> parsed = parse_name(name);
    return parsed && parsed->kind == FileKind::rank_file;
}

// Number of rows in the rank's file; nullopt if its ranges do not ascend or do not fit into it.
std::optional<std::size_t> rows_of(const std::vector<TileRange>& ranges, std::uint64_t file_bytes) {
    const std::size_t most = file_bytes / kStateBytes;
    std::size_t rows = 0;
    std::size_t next = 0;
    for (const TileRange& range : ranges) {
        if (range.begin < next || range.end < range.begin ||
            range.end - range.begin > most - rows) {
            return std::nullopt;
        }
        rows += range.end - range.begin;
        next = range.end;
    }
    return rows;
}

}  // namespace

std::optional<std::string> find_fault(const Index& index) {
    const std::size_t parameters = index.description.parameters;
    if (parameters == 0 || parameters > std::numeric_limits<std::int64_t>::max()) {
        return text("It is of ", parameters, " parameters.");
    }
    std::vector<TileRange> all;
    for (std::size_t rank = 0; rank < index.files.size(); ++rank) {
        if (!is_rank_file(index.files[rank])) {
            return text("The file of rank ", rank, " has the name of none.");
        }
        if (!rows_of(index.ranges[rank], index.records[rank].file_bytes)) {
            return text("The tiles of rank ", rank, " are not those of a file of ",
                        index.records[rank].file_bytes, " bytes.");
        }
        all.insert(all.end(), index.ranges[rank].begin(), index.ranges[rank].end());
    }
    std::erase_if(all, [](const TileRange& range) { return range.size() == 0; });
    std::ranges::sort(all, {}, &TileRange::begin);
    std::size_t next = 0;
    for (const TileRange& range : all) {
        if (range.begin != next) {
            return text("Not one rank but none or two have tile ", std::min(next, range.begin),
                        ".");
        }
        next = range.end;
    }
    if (next != shard::tiles_of(parameters)) {
        return text("The ranks have ", next, " tiles, and the parameters are ",
                    shard::tiles_of(parameters), ".");
    }
    for (const TensorPlace& tensor : index.description.tensors) {
        if (!is_inside(tensor, parameters)) {
            return text("A tensor at ", tensor.offset, " does not lie in the parameter vector.");
        }
    }
    const Description& about = index.description;
    if (about.programs.size() > index.files.size()) {
        return text("It has ", index.files.size(), " rank files, and what ", about.programs.size(),
                    " programs kept.");
    }
    if (about.missed.size() > about.tensors.size() ||
        std::ranges::any_of(about.missed,
                            [&](std::int64_t count) { return count > about.generation; })) {
        return "Tensors missed more updates than there were, or are not in the table of tensors.";
    }
    if (!store::is_possible(about)) {
        return "Its step, its number of updates or its loss scale is one that no run has.";
    }
    return std::nullopt;
}

}  // namespace nearstep::checkpoint
