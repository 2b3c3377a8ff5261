// Writes a checkpoint and what it describes, restores residuals from one, computes digests. Called
// by Run between steps and as it begins.
#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/version.hpp"
#include "base/wording.hpp"
#include "checkpoint/owner.hpp"
#include "engine/placement/devices.hpp"
#include "engine/state/state.hpp"
#include "store/storage_folder.hpp"

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

void State::save_residual(checkpoint::RankFileWriter& writer) {
    if (exchange::Residual* residual = resources_.pipeline->residual()) {
        for (const std::size_t tile : residual->tiles()) {
            writer.write_residual(tile, residual->of(tile));
        }
    }
}

// If the same ranks slice a tile as before, each reads its own residual; else the heir sums them.
void State::restore_residual(checkpoint::Reader& reader) {
    exchange::Residual* residual = resources_.pipeline->residual();
    if (residual == nullptr) {
        return;
    }
    std::vector<float> addend(kTileElems);
    for (const std::size_t tile : residual->tiles()) {
        const std::vector<int> kept_by = reader.residual_ranks(tile);
        const std::span<float> values = residual->of(tile);
        std::ranges::fill(values, 0.0F);
        if (kept_by == resources_.pipeline->residual_ranks(tile)) {
            reader.read_residual(resources_.world.rank(), tile, values);
        } else if (resources_.pipeline->residual_heir(tile) == resources_.world.rank()) {
            for (const int rank : kept_by) {
                reader.read_residual(rank, tile, addend);
                std::ranges::transform(values, addend, values.begin(), std::plus());
            }
        }
    }
}

checkpoint::Description State::describe(const store::Commit& position) const {
    checkpoint::Description description;
    static_cast<store::Commit&>(description) = position;
    static_cast<store::Lineage&>(description) = line_;
    description.seed = resources_.identity.seed;
    description.data = resources_.identity.data;
    description.dtype = name_of(resources_.layout.dtype);
    description.threads = resources_.threads;
    description.config =
        resources_.identity.config ? resources_.identity.config(resources_.settings) : "";
    description.model = resources_.identity.model;
    description.commit = nearstep::commit();
    description.site = resources_.settings.site;
    description.parameters = resources_.layout.elems;
    for (const Tensor& tensor : resources_.layout.tensors) {
        description.tensors.push_back({tensor.name, tensor.shape, tensor.offset});
    }
    return description;
}

std::string State::claim_checkpoint_folder(const std::string& folder) {
    std::string own;
    resources_.world.together([&] {
        if (resources_.world.rank() == 0) {
            own = checkpoint::claim_folder(folder, {.line = line_, .replaced = replaced_runs_});
        }
    });
    return resources_.world.broadcast(own, 0);
}

// The description with what the programs of all ranks kept, and the records of all ranks: each rank
// fills in its own.
checkpoint::Description State::share_records(const store::Commit& position,
                                             const store::ProgramRecord& kept,
                                             std::span<checkpoint::RankFileRecord> records) const {
    const auto rank = static_cast<std::size_t>(resources_.world.rank());
    const std::array mine = {records[rank].file_bytes, records[rank].tiles_xxh3, kept.bytes,
                             kept.xxh3};
    std::vector<std::uint64_t> numbers(mine.size() * records.size(), 0);
    std::ranges::copy(mine, numbers.begin() + static_cast<std::ptrdiff_t>(mine.size() * rank));
    resources_.world.sum(std::span(numbers));
    checkpoint::Description description = describe(position);
    for (std::size_t r = 0; r < records.size(); ++r) {
        const std::uint64_t* of_rank = numbers.data() + mine.size() * r;
        records[r] = {.file_bytes = of_rank[0], .tiles_xxh3 = of_rank[1]};
        description.programs.push_back(
            {.step = position.step, .bytes = of_rank[2], .xxh3 = of_rank[3]});
    }
    const int computing = config::computing_ranks(resources_.settings, resources_.world.size());
    description.programs.resize(
        resources_.options.program == ProgramUse::none ? 0 : static_cast<std::size_t>(computing));
    return description;
}

std::string State::save(const std::string& named, const store::Commit& position,
                        std::span<const std::byte> program) {
    const std::string folder = claim_checkpoint_folder(named);
    // Only rank 0 looks at the folder, so all ranks use the same attempt number in names.
    int attempt = 0;
    resources_.world.together([&] {
        attempt =
            resources_.world.rank() == 0 ? checkpoint::next_attempt(folder, position.step) : 0;
    });
    attempt = std::stoi(resources_.world.broadcast(std::to_string(attempt), 0));

    std::vector<std::vector<shard::TileRange>> ranges(
        static_cast<std::size_t>(resources_.world.size()));
    for (const shard::Subgroup& subgroup : resources_.owners.copy(0).partition.subgroups()) {
        const int owner = resources_.owners.copy(0).owner_of_tile(subgroup.tiles.begin);
        append(ranges[static_cast<std::size_t>(owner)], subgroup.tiles);
    }
    std::vector<checkpoint::RankFileRecord> records(ranges.size());
    store::ProgramRecord kept;
    const auto rank = static_cast<std::size_t>(resources_.world.rank());
    resources_.world.together([&] {
        const exchange::Residual* residual = resources_.pipeline->residual();
        const auto writer = checkpoint::RankFileWriter::make(
            folder, position.step, attempt, resources_.world.rank(), ranges[rank],
            residual == nullptr ? std::vector<std::size_t>() : residual->tiles());
        visit(alone_, [&](const auto& of, const csd::StateArrays& state) {
            if (resources_.is_in_first_copy()) {  // copies are equal, and a checkpoint contains one
                of.read(generation(), state);
                resources_.faults.pass(FaultPhase::mid_checkpoint);
                writer->write(of.tiles, {state.master, state.moment1, state.moment2});
            }
        });
        save_residual(*writer);
        records[rank] = writer->finish();
        kept = checkpoint::write_program(folder, position.step, attempt, resources_.world.rank(),
                                         line_.run, program);
    });
    const checkpoint::Description description = share_records(position, kept, records);
    resources_.faults.pass(FaultPhase::before_checkpoint_index);
    std::string path;
    resources_.world.together([&] {
        if (resources_.world.rank() == 0) {
            path = checkpoint::publish(
                folder, description, attempt, ranges, records,
                store::folder_of(manifest_path(resources_.settings, 0, resources_.set)));
        }
    });
    resources_.faults.pass(FaultPhase::after_checkpoint_index);
    return resources_.world.broadcast(path, 0);
}

std::uint64_t State::masters_digest() {
    std::vector<std::uint64_t> of_tile(resources_.owners.tiles(), 0);
    visit(resources_.pool, [&](const auto& of, const csd::StateArrays& state) {
        of.read(generation(), state);
        for (std::size_t tile = of.tiles.begin; tile < of.tiles.end; ++tile) {
            const auto values = state.master.subspan((tile - of.tiles.begin) * kTileElems,
                                                     resources_.copy.partition.elems_in_tile(tile));
            of_tile[tile] = xxh3(std::as_bytes(values));
        }
    });
    resources_.pipeline->copy_ranks().sum(std::span(of_tile));
    const std::uint64_t digest = xxh3(std::as_bytes(std::span<const std::uint64_t>(of_tile)));
    const std::string first = resources_.world.broadcast(to_hex(digest), 0);
    if (!resources_.world.agree(to_hex(digest) == first)) {
        throw Error(text("The copies of the optimizer state are not equal (copy ",
                         resources_.owners.copy_of(resources_.world.rank()), " has ",
                         to_hex(digest), ", copy 0 ", first, "): go on from a checkpoint with ",
                         Term::from, "."));
    }
    return digest;
}

}  // namespace nearstep::engine
