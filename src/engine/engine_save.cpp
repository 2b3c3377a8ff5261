// Writes a checkpoint and what it describes, restores residuals from one, computes digests.
// Called by clients between steps, and by begin().
#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/version.hpp"
#include "base/wording.hpp"
#include "checkpoint/owner.hpp"
#include "engine/engine.hpp"

#include <algorithm>
#include <array>
#include <functional>

namespace nearstep::engine {

using shard::kTileElems;

namespace {

// Appends `tiles` to ascending ranges and merges them with the last range if they touch.
void append(std::vector<shard::TileRange>& ranges, shard::TileRange tiles) {
    if (!ranges.empty() && ranges.back().end == tiles.begin) {
        ranges.back().end = tiles.end;
    } else {
        ranges.push_back(tiles);
    }
}

}  // namespace

void Engine::save_residual(checkpoint::RankFileWriter& writer) {
    if (exchange::Residual* residual = pipeline_->residual()) {
        for (const std::size_t tile : residual->tiles()) {
            writer.write_residual(tile, residual->of(tile));
        }
    }
}

// If the same ranks slice a tile as before, each reads its own residual; else the heir sums them.
void Engine::restore_residual(checkpoint::Reader& reader) {
    exchange::Residual* residual = pipeline_->residual();
    if (residual == nullptr) {
        return;
    }
    std::vector<float> addend(kTileElems);
    for (const std::size_t tile : residual->tiles()) {
        const std::vector<int> kept_by = reader.residual_ranks(tile);
        const std::span<float> values = residual->of(tile);
        std::ranges::fill(values, 0.0F);
        if (kept_by == pipeline_->residual_ranks(tile)) {
            reader.read_residual(world_.rank(), tile, values);
        } else if (pipeline_->residual_heir(tile) == world_.rank()) {
            for (const int rank : kept_by) {
                reader.read_residual(rank, tile, addend);
                std::ranges::transform(values, addend, values.begin(), std::plus());
            }
        }
    }
}

checkpoint::Description Engine::describe() const {
    checkpoint::Description description;
    static_cast<store::Commit&>(description) = position();
    static_cast<store::Lineage&>(description) = line_;
    description.seed = identity_.seed;
    description.data = identity_.data;
    description.dtype = name_of(layout_.dtype);
    description.threads = threads_;
    description.config = identity_.config ? identity_.config(settings_) : "";
    description.model = identity_.model;
    description.commit = nearstep::commit();
    description.site = settings_.site;
    description.parameters = layout_.elems;
    for (const Tensor& tensor : layout_.tensors) {
        description.tensors.push_back({tensor.name, tensor.shape, tensor.offset});
    }
    return description;
}

std::string Engine::claim_checkpoint_folder(const std::string& folder) {
    std::string own;
    world_.together([&] {
        if (world_.rank() == 0) {
            own = checkpoint::claim_folder(folder, {.line = line_, .replaced = replaced_runs_});
        }
    });
    return world_.broadcast(own, 0);
}

// The description with what the programs of all ranks kept, and the records of all ranks: each rank
// fills in its own.
checkpoint::Description Engine::share_records(const store::ProgramRecord& kept,
                                              std::span<checkpoint::RankFileRecord> records) const {
    const auto rank = static_cast<std::size_t>(world_.rank());
    const std::array mine = {records[rank].file_bytes, records[rank].tiles_xxh3, kept.bytes,
                             kept.xxh3};
    std::vector<std::uint64_t> numbers(mine.size() * records.size(), 0);
    std::ranges::copy(mine, numbers.begin() + static_cast<std::ptrdiff_t>(mine.size() * rank));
    world_.sum(std::span(numbers));
    checkpoint::Description description = describe();
    for (std::size_t r = 0; r < records.size(); ++r) {
        const std::uint64_t* of_rank = numbers.data() + mine.size() * r;
        records[r] = {.file_bytes = of_rank[0], .tiles_xxh3 = of_rank[1]};
        description.programs.push_back(
            {.step = steps_done_, .bytes = of_rank[2], .xxh3 = of_rank[3]});
    }
    const int computing = config::computing_ranks(settings_, world_.size());
    description.programs.resize(
        options_.program == ProgramUse::none ? 0 : static_cast<std::size_t>(computing));
    return description;
}

std::string Engine::save(const std::string& named, std::span<const std::byte> program) {
    expects(!is_under_way(), "a step is finished before it is saved");
    const std::string folder = claim_checkpoint_folder(named);
    // Only rank 0 looks at the folder, so all ranks use the same attempt number in names.
    int attempt = 0;
    world_.together(
        [&] { attempt = world_.rank() == 0 ? checkpoint::next_attempt(folder, steps_done_) : 0; });
    attempt = std::stoi(world_.broadcast(std::to_string(attempt), 0));

    std::vector<std::vector<shard::TileRange>> ranges(static_cast<std::size_t>(world_.size()));
    for (const shard::Subgroup& subgroup : owners_.copy(0).partition.subgroups()) {
        const int owner = owners_.copy(0).owner_of_tile(subgroup.tiles.begin);
        append(ranges[static_cast<std::size_t>(owner)], subgroup.tiles);
    }
    std::vector<checkpoint::RankFileRecord> records(ranges.size());
    store::ProgramRecord kept;
    const auto rank = static_cast<std::size_t>(world_.rank());
    world_.together([&] {
        const exchange::Residual* residual = pipeline_->residual();
        const auto writer = checkpoint::RankFileWriter::make(
            folder, steps_done_, attempt, world_.rank(), ranges[rank],
            residual == nullptr ? std::vector<std::size_t>() : residual->tiles());
        visit_states(alone_, [&](const auto& of, const csd::StateArrays& state) {
            if (is_in_first_copy()) {  // copies are equal, and a checkpoint contains one
                of.read(pipeline_->generation(), state);
                faults_.pass(FaultPhase::mid_checkpoint);
                writer->write(of.tiles, {state.master, state.moment1, state.moment2});
            }
        });
        save_residual(*writer);
        records[rank] = writer->finish();
        kept = checkpoint::write_program(folder, steps_done_, attempt, world_.rank(), line_.run,
                                         program);
    });
    const checkpoint::Description description = share_records(kept, records);
    faults_.pass(FaultPhase::before_checkpoint_index);
    std::string path;
    world_.together([&] {
        if (world_.rank() == 0) {
            path = checkpoint::publish(folder, description, attempt, ranges, records,
                                       store::folder_of(manifest_path(settings_, 0, set_)));
        }
    });
    faults_.pass(FaultPhase::after_checkpoint_index);
    return world_.broadcast(path, 0);
}

std::uint64_t Engine::masters_digest() {
    expects(!is_under_way(), "a step is finished before its masters are read");
    std::vector<std::uint64_t> of_tile(owners_.tiles(), 0);
    visit_states(pool_, [&](const auto& of, const csd::StateArrays& state) {
        of.read(pipeline_->generation(), state);
        for (std::size_t tile = of.tiles.begin; tile < of.tiles.end; ++tile) {
            const auto values = state.master.subspan((tile - of.tiles.begin) * kTileElems,
                                                     copy_.partition.elems_in_tile(tile));
            of_tile[tile] = xxh3(std::as_bytes(values));
        }
    });
    pipeline_->copy_ranks().sum(std::span(of_tile));
    const std::uint64_t digest = xxh3(std::as_bytes(std::span<const std::uint64_t>(of_tile)));
    const std::string first = world_.broadcast(to_hex(digest), 0);
    if (!world_.agree(to_hex(digest) == first)) {
        throw Error(text("The copies of the optimizer state are not equal (copy ",
                         owners_.copy_of(world_.rank()), " has ", to_hex(digest), ", copy 0 ",
                         first, "): go on from a checkpoint with ", Term::from, "."));
    }
    return digest;
}

}  // namespace nearstep::engine
