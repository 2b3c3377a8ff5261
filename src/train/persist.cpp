// The trainer's way to and from storage: start values, state files, checkpoints, the masters'
// digest.
#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/version.hpp"
#include "config/load.hpp"
#include "train/devices.hpp"
#include "train/subgroup_team.hpp"
#include "train/trainer.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>

namespace nearstep::train {

using shard::kTileElems;

namespace {

// Adds `tiles` to ascending ranges, joined to the last one where they touch.
void append(std::vector<shard::TileRange>& ranges, shard::TileRange tiles) {
    if (!ranges.empty() && ranges.back().end == tiles.begin) {
        ranges.back().end = tiles.end;
    } else {
        ranges.push_back(tiles);
    }
}

// Random, so that no two runs have the same; the same on all ranks.
std::string draw_run_id(const mpi::Communicator& world) {
    std::random_device source;
    const std::uint64_t high = source();
    return world.broadcast(to_hex(high << 32U | source()), 0);
}

}  // namespace

store::Commit Trainer::position() const {
    return {.step = steps_done_,
            .generation = pipeline_->generation(),
            .loss_scale = loss_scale_.value(),
            .good_steps = loss_scale_.good_steps(),
            .norm = clipping_norm_};
}

store::Manifest Trainer::identity() const {
    return {.run = run_id_,
            .model = model_line(run_.model, tokenizer_),
            .layout = layout_line(run_, world_.size(), copy_),
            .seed = run_.train.seed,
            .steps = run_.train.steps,
            .commits = {}};
}

// No rank's files are emptied before no rank's manifest counts.
void Trainer::empty_state_files() {
    world_.together([this] { log_.withdraw(); });
    world_.together([this] { pipeline_->reserve(); });
    log_.begin(identity());
}

// The parameters that a rank computes with are its masters, rounded: here those of its own tiles.
void Trainer::load_masters_into_vector(shard::TileRange tiles, std::span<const float> masters) {
    const std::size_t tile_bytes = kTileElems * size_bytes(run_.model.dtype);
    convert_from_fp32(masters.data(), run_.model.dtype,
                      vector_.span().data() + tiles.begin * tile_bytes, masters.size());
}

void Trainer::start() {
    run_id_ = draw_run_id(world_);
    empty_state_files();
    world_.together([this] {
        SubgroupTeam(*pipeline_, team_)
            .visit(
                {.before =
                     [this](shard::TileRange tiles, const csd::StateArrays& state) {
                         model::fill_start_values(geometry_, run_.train.seed,
                                                  tiles.begin * kTileElems, state.master);
                         std::ranges::fill(state.moment1, 0.0F);
                         std::ranges::fill(state.moment2, 0.0F);
                     },
                 .move =
                     [](csd::Device& device, std::size_t subgroup, const csd::StateArrays& state) {
                         device.write_state(subgroup, 0, state);
                     },
                 .after =
                     [this](shard::TileRange tiles, const csd::StateArrays& state) {
                         load_masters_into_vector(tiles, state.master);
                     }});
    });
    pipeline_->set_generation(0);
    pipeline_->gather(vector_.span());
    commit();
}

void Trainer::restore(const std::string& index_path) {
    std::unique_ptr<checkpoint::Reader> reader;
    world_.together([&] {
        reader = checkpoint::Reader::open(index_path);
        const checkpoint::Description& description = reader->description();
        if (description.model != model_line(run_.model, tokenizer_)) {
            throw ConfigError(text("The checkpoint ", index_path, " is of another model (",
                                   description.model, ", not ", model_line(run_.model, tokenizer_),
                                   "): resume with the config it was made with, or name "
                                   "another folder in checkpoint.path."));
        }
    });
    const checkpoint::Description& description = reader->description();
    run_id_ = description.run;
    empty_state_files();
    world_.together([&] {
        pipeline_->visit_subgroups(
            [&](csd::Device& device, std::size_t subgroup, shard::TileRange tiles) {
                const std::size_t elems = tiles.size() * kTileElems;
                const std::span<float> masters = std::span(master_).first(elems);
                const std::span<float> moments1 = std::span(moment1_).first(elems);
                const std::span<float> moments2 = std::span(moment2_).first(elems);
                reader->read(tiles, {masters, moments1, moments2});
                device.write_state(subgroup, description.generation, {masters, moments1, moments2});
                load_masters_into_vector(tiles, masters);
            });
    });
    world_.together([&] { restore_residual(*reader); });
    pipeline_->set_generation(description.generation);
    steps_done_ = description.step;
    loss_scale_.restore(description.loss_scale, description.good_steps);
    restore_clipping(description.norm);
    pipeline_->gather(vector_.span());
    commit();
}

std::optional<std::string> Trainer::restore_state(const std::string& run,
                                                  const store::Commit& commit_to_use) {
    try {
        world_.together([&] {
            SubgroupTeam(*pipeline_, team_)
                .visit({.move =
                            [&](csd::Device& device, std::size_t subgroup,
                                const csd::StateArrays& state) {
                                device.read_state(subgroup, commit_to_use.generation, state);
                            },
                        .after =
                            [this](shard::TileRange tiles, const csd::StateArrays& state) {
                                load_masters_into_vector(tiles, state.master);
                            }});
        });
    } catch (const ConfigError& fault) {
        return fault.what();
    }
    run_id_ = run;
    pipeline_->set_generation(commit_to_use.generation);
    steps_done_ = commit_to_use.step;
    loss_scale_.restore(commit_to_use.loss_scale, commit_to_use.good_steps);
    restore_clipping(commit_to_use.norm);
    pipeline_->gather(vector_.span());
    log_.begin(identity());
    if (run_.csd.durability == "step") {
        commit();
    } else {
        world_.together([this] { log_.withdraw(); });
    }
    return std::nullopt;
}

void Trainer::save_residual(checkpoint::RankFileWriter& writer) {
    if (exchange::Residual* residual = pipeline_->residual()) {
        for (const std::size_t tile : residual->tiles()) {
            writer.write_residual(tile, residual->of(tile));
        }
    }
}

// Each rank takes its own where the same ranks slice a tile as before; else its heir takes the sum.
void Trainer::restore_residual(checkpoint::Reader& reader) {
    exchange::Residual* residual = pipeline_->residual();
    if (residual == nullptr) {
        return;
    }
    std::vector<float> addend(kTileElems);
    for (const std::size_t tile : residual->tiles()) {
        const std::vector<int> kept_by = reader.residual_ranks(tile);
        const std::span<float> values = residual->of(tile);
        std::fill(values.begin(), values.end(), 0.0F);
        if (kept_by == pipeline_->residual_ranks(tile)) {
            reader.read_residual(world_.rank(), tile, values);
        } else if (pipeline_->residual_heir(tile) == world_.rank()) {
            for (const int rank : kept_by) {
                reader.read_residual(rank, tile, addend);
                std::transform(values.begin(), values.end(), addend.begin(), values.begin(),
                               std::plus<>());
            }
        }
    }
}

checkpoint::Description Trainer::describe() const {
    checkpoint::Description description;
    description.step = steps_done_;
    description.generation = pipeline_->generation();
    description.loss_scale = loss_scale_.value();
    description.good_steps = loss_scale_.good_steps();
    description.norm = clipping_norm_;
    description.seed = run_.train.seed;
    description.run = run_id_;
    description.config = config::print(run_);
    description.model = model_line(run_.model, tokenizer_);
    description.commit = nearstep::commit();
    description.site = run_.site;
    description.parameters = geometry_.elems;
    for (const model::Parameter& parameter : geometry_.parameters) {
        description.tensors.push_back({parameter.name, parameter.shape, parameter.offset});
    }
    return description;
}

std::string Trainer::save(const std::string& folder) {
    expects(!under_way_, "a step is finished before it is saved");
    // Rank 0 alone looks at what is there, so that all ranks use the same attempt's names.
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
    const auto rank = static_cast<std::size_t>(world_.rank());
    world_.together([&] {
        const exchange::Residual* residual = pipeline_->residual();
        const auto writer = checkpoint::RankFileWriter::make(
            folder, steps_done_, attempt, world_.rank(), ranges[rank],
            residual == nullptr ? std::vector<std::size_t>() : residual->tiles());
        pipeline_->visit_subgroups(
            [&](csd::Device& device, std::size_t subgroup, shard::TileRange tiles) {
                if (!is_in_first_copy()) {
                    return;  // the copies are equal, and a checkpoint has one
                }
                const std::size_t elems = tiles.size() * kTileElems;
                const csd::StateArrays state{std::span(master_).first(elems),
                                             std::span(moment1_).first(elems),
                                             std::span(moment2_).first(elems)};
                device.read_state(subgroup, pipeline_->generation(), state);
                faults_.pass(FaultPhase::mid_checkpoint);
                writer->write(tiles, {state.master, state.moment1, state.moment2});
            });
        save_residual(*writer);
        records[rank] = writer->finish();
    });
    // The records of all ranks, each given by one.
    std::vector<std::uint64_t> numbers(2 * records.size(), 0);
    numbers[2 * rank] = records[rank].file_bytes;
    numbers[2 * rank + 1] = records[rank].tiles_xxh3;
    world_.sum(std::span(numbers));
    for (std::size_t r = 0; r < records.size(); ++r) {
        records[r].file_bytes = numbers[2 * r];
        records[r].tiles_xxh3 = numbers[2 * r + 1];
    }
    faults_.pass(FaultPhase::before_checkpoint_index);
    std::string path;
    world_.together([&] {
        if (world_.rank() == 0) {
            path = checkpoint::publish(folder, describe(), attempt, ranges, records);
        }
    });
    faults_.pass(FaultPhase::after_checkpoint_index);
    return world_.broadcast(path, 0);
}

std::uint64_t Trainer::masters_digest() {
    expects(!under_way_, "a step is finished before its masters are read");
    std::vector<std::uint64_t> of_tile(owners_.tiles(), 0);
    SubgroupTeam(*pipeline_, team_)
        .visit(
            {.move =
                 [this](csd::Device& device, std::size_t subgroup, const csd::StateArrays& state) {
                     device.read_state(subgroup, pipeline_->generation(), state);
                 },
             .after =
                 [&](shard::TileRange tiles, const csd::StateArrays& state) {
                     for (std::size_t tile = tiles.begin; tile < tiles.end; ++tile) {
                         const auto values =
                             state.master.subspan((tile - tiles.begin) * kTileElems,
                                                  copy_.partition.elems_in_tile(tile));
                         of_tile[tile] = xxh3(std::as_bytes(values));
                     }
                 }});
    pipeline_->copy_ranks().sum(std::span(of_tile));
    const std::uint64_t digest = xxh3(std::as_bytes(std::span<const std::uint64_t>(of_tile)));
    const std::string first = world_.broadcast(to_hex(digest), 0);
    if (!world_.agree(to_hex(digest) == first)) {
        throw Error(text("The copies of the optimizer state are not equal (copy ",
                         owners_.copy_of(world_.rank()), " has ", to_hex(digest), ", copy 0 ",
                         first, "): go on from a checkpoint with --from."));
    }
    return digest;
}

}  // namespace nearstep::train
