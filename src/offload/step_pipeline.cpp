#include "offload/step_pipeline.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace nearstep::offload {

using shard::kTileElems;

namespace {

// The block's complete tiles, cut into rounds of about a stripe, last first. So each round has work
// for every owner. The same on all ranks.
std::vector<shard::TileRange> rounds_of(ElementRange block, std::size_t round_tiles) {
    std::vector<shard::TileRange> rounds;
    const shard::TileRange tiles = complete_tiles(block);
    for (std::size_t end = tiles.end; end > tiles.begin;) {
        const std::size_t begin = std::max(tiles.begin, end - std::min(end, round_tiles));
        rounds.push_back({begin, end});
        end = begin;
    }
    return rounds;
}

// Tiles of the widest stripe: one subgroup of every device. Uses the first copy, since rounds are
// the same on all ranks.
std::size_t stripe_tiles(const shard::Ownership& owners) {
    const shard::Partition& partition = owners.copy(0).partition;
    std::size_t tiles = 0;
    for (int device = 0; device < partition.devices(); ++device) {
        tiles += partition.largest_subgroup_tiles(device);
    }
    return std::max<std::size_t>(tiles, 1);
}

std::vector<shard::TileRange> all_rounds(const PipelineSettings& settings) {
    std::vector<shard::TileRange> rounds;
    for (const ElementRange block : settings.blocks) {
        const auto of_block = rounds_of(block, stripe_tiles(*settings.owners));
        rounds.insert(rounds.end(), of_block.begin(), of_block.end());
    }
    return rounds;
}

}  // namespace

StepPipeline::StepPipeline(const mpi::Communicator& world, PipelineSettings settings,
                           std::vector<std::unique_ptr<csd::Device>> devices,
                           trace::Traffic& traffic)
    : world_(world),
      settings_(std::move(settings)),
      copy_(settings_.owners->of_rank(world.rank())),
      copy_ranks_(world.split(settings_.owners->copy_of(world.rank()))),
      devices_(std::move(devices)),
      rounds_(all_rounds(settings_)),
      scatter_(world,
               {.owners = settings_.owners,
                .codec = settings_.codec,
                .most_payload_bytes = settings_.most_payload_bytes,
                .has_residual = settings_.has_error_feedback,
                .gradient_dtype = settings_.dtype,
                .groups = settings_.groups,
                .nodes = settings_.nodes,
                .links = settings_.links},
               rounds_, traffic),
      update_(copy_ranks_,
              {.vector = settings_.vector,
               .meets_in_node = settings_.meets_in_node,
               .handler = settings_.handler,
               .gather = gather_settings()},
              devices_, traffic),
      assembly_(settings_.gpu ? std::vector<ElementRange>() : settings_.blocks),
      pool_(*settings_.pool),
      owner_sums_(static_cast<std::size_t>(pool_.threads())),
      squares_of_tile_(settings_.owners->tiles()) {
    expects(static_cast<int>(devices_.size()) == copy_.devices.count(copy_ranks_.rank()),
            "the rank has the devices that the map gives it");
    for (exchange::OwnerSum& sum : owner_sums_) {
        sum.begin_step(*settings_.codec, nullptr, 0);
    }
    if (settings_.gpu) {
        expects(!settings_.has_error_feedback, "what is fed back lies on the host");
        gpu_gradients_.emplace(
            *settings_.gpu, settings_.blocks,
            std::max(settings_.codec->payload_bytes(), settings_.most_payload_bytes),
            settings_.dtype, gradient_group(), payload_group(), settings_.gradient_stream);
    }
}

// Ranks take the same slices on GPUs as on the host.
std::optional<GradientGroup> StepPipeline::gradient_group() const {
    const int group = settings_.groups.group_of[static_cast<std::size_t>(world_.rank())];
    const auto members = settings_.groups.ranks_beside(world_.rank()).size();
    if (settings_.gpu_group == nullptr) {
        expects(members == 1, "a rank whose gradient others add to has its group");
        return std::nullopt;
    }
    expects(static_cast<std::size_t>(settings_.gpu_group->size()) == members,
            "the group is that of the scatter");
    GradientGroup out{.ranks = settings_.gpu_group, .blocks = {}};
    for (const ElementRange block : settings_.blocks) {
        out.blocks.emplace_back(
            complete_tiles(block), static_cast<int>(members), [&](std::size_t tile) {
                return settings_.groups.rank_in_group(scatter_.slicer(group, tile));
            });
    }
    return out;
}

std::optional<PayloadGroup> StepPipeline::payload_group() const {
    if (settings_.payload_ranks == nullptr) {
        return std::nullopt;
    }
    expects(settings_.owners->copies() == 1 && settings_.links == nullptr,
            "payloads have one way each, and nothing holds them up");
    const MakersAndTakers ranks_of{
        .ranks = world_.size(),
        .groups = scatter_.sources(),
        .maker = [this](int group, std::size_t tile) { return scatter_.slicer(group, tile); },
        .taker =
            [this](std::size_t tile) { return settings_.owners->copy(0).owner_of_tile(tile); }};
    const int group = settings_.groups.group_of[static_cast<std::size_t>(world_.rank())];
    PayloadGroup out{.ranks = settings_.payload_ranks, .blocks = {}};
    for (const ElementRange block : settings_.blocks) {
        out.blocks.emplace_back(complete_tiles(block), world_.rank(), group, ranks_of);
    }
    return out;
}

exchange::ParameterGatherSettings StepPipeline::gather_settings() const {
    // At least one subgroup per device: neighbours in the vector lie on one node's devices, so with
    // fewer in flight only one node would send at a time. Two per device if parameters arrive in
    // place, so that a late rank does not delay the others. A delta takes memory while in flight.
    const bool has_deltas = settings_.delivery == csd::Delivery::deltas;
    const std::size_t of_each = has_deltas ? 1 : 2;
    const std::size_t in_flight =
        std::max(exchange::ParameterGatherSettings().in_flight,
                 of_each * static_cast<std::size_t>(copy_.devices.devices()));
    return {.partition = &copy_.partition,
            .devices = &copy_.devices,
            .parameter_dtype = settings_.dtype,
            .nodes = mpi::restrict_to(settings_.nodes, copy_.ranks),
            .are_vectors_shared = settings_.vector == VectorKind::shared_in_node,
            .has_deltas = has_deltas,
            .links = settings_.links,
            .in_flight = in_flight};
}

void StepPipeline::begin_step(const exchange::StepEncoding& encoding, const codec::Codec* handed) {
    scatter_.begin_step(encoding);
    final_from_ = settings_.owners->tiles();
    for (exchange::OwnerSum& sum : owner_sums_) {
        sum.begin_step(*encoding.codec, handed, encoding.random_key);
    }
    if (gpu_gradients_) {
        gpu_gradients_->begin_step(*encoding.codec, scatter_.source_key());
    }
    for (const auto& device : devices_) {
        device->use_codec(handed != nullptr ? *handed : *encoding.codec);
    }
}

std::vector<int> StepPipeline::residual_ranks(std::size_t tile) const {
    std::vector<int> ranks;
    ranks.reserve(static_cast<std::size_t>(scatter_.sources()));
    for (int group = 0; group < scatter_.sources(); ++group) {
        ranks.push_back(scatter_.slicer(group, tile));
    }
    std::sort(ranks.begin(), ranks.end());
    return ranks;
}

int StepPipeline::residual_heir(std::size_t tile) const {
    const int owner = settings_.owners->copy(0).owner_of_tile(tile);
    return scatter_.slicer(settings_.groups.group_of[static_cast<std::size_t>(owner)], tile);
}

std::span<float> StepPipeline::gradient_space(std::size_t block) {
    return gpu_gradients_ ? gpu_gradients_->space(block) : assembly_.space(settings_.blocks[block]);
}

exchange::TileSink StepPipeline::collect() {
    taken_.clear();
    return [this](std::size_t tile, std::span<const std::span<const std::byte>> payloads) {
        taken_.push_back({tile, {payloads.begin(), payloads.end()}});
    };
}

// Threads take single tiles, or all tiles of a device that needs them in order.
void StepPipeline::take_round() {
    std::vector<std::size_t> begins;
    std::size_t last_device = devices_.size();
    for (std::size_t i = 0; i < taken_.size(); ++i) {
        const std::size_t device = device_of(taken_[i].tile);
        if (device != last_device || !devices_[device]->takes_tiles_in_order()) {
            begins.push_back(i);
        }
        last_device = device;
    }
    begins.push_back(taken_.size());
    pool_.share(begins.size() - 1, [&](std::size_t i, int member) {
        for (std::size_t at = begins[i]; at < begins[i + 1]; ++at) {
            take_tile(taken_[at], owner_sums_[static_cast<std::size_t>(member)]);
        }
    });
}

std::size_t StepPipeline::device_of(std::size_t tile) const {
    return update_.place_of(copy_.partition.subgroup_of_tile(tile)).device;
}

void StepPipeline::take_tile(const exchange::TilePayloads& of, exchange::OwnerSum& sum) {
    const bool counts = settings_.owners->copy_of(world_.rank()) == 0;
    const exchange::Handed handed =
        sum.take(of.tile, of.payloads, counts ? copy_.partition.elems_in_tile(of.tile) : 0);
    squares_of_tile_[of.tile] = handed.squares;
    devices_[device_of(of.tile)]->put_gradient(of.tile, handed.payloads, handed.sum);
}

// The previous block's gradients reached the devices while this block was computed.
void StepPipeline::release_gradients() {
    if (update_.is_under_way()) {
        for (const auto& device : devices_) {
            device->finish_gradients();
        }
        update_.release(final_from_);
    }
}

// The host handles a block's payloads while the GPU computes the next block: all at once, unless
// messages limit how many.
void StepPipeline::put_payloads(std::size_t block) {
    const shard::TileRange tiles = complete_tiles(settings_.blocks[block]);
    const bool are_brought = gpu_gradients_->are_brought();
    const bool has_messages = !are_brought && !scatter_.stays_where_sliced();
    for (const shard::TileRange round :
         rounds_of(settings_.blocks[block],
                   has_messages ? stripe_tiles(*settings_.owners) : tiles.size())) {
        if (are_brought) {
            scatter_.hand_over_arrived(
                round,
                [this](std::size_t tile, int group) {
                    return gpu_gradients_->arrived(tile, group);
                },
                collect());
        } else {
            scatter_.scatter_payloads(
                round, [this](std::size_t tile) { return gpu_gradients_->payload(tile); },
                collect());
        }
        take_round();
    }
    final_from_ = std::min(final_from_, tiles.begin);
}

void StepPipeline::put_gradient(std::size_t block) {
    release_gradients();
    if (gpu_gradients_) {
        gpu_gradients_->encode(block);
        if (const auto before = std::exchange(encoding_block_, block)) {
            put_payloads(*before);
        }
        return;
    }
    const ElementRange range = settings_.blocks[block];
    const std::span<const float> values = assembly_.tiles(range);
    const std::size_t first = complete_tiles(range).begin;
    for (const shard::TileRange round : rounds_of(range, stripe_tiles(*settings_.owners))) {
        scatter_.scatter(
            round, values.subspan((round.begin - first) * kTileElems, round.size() * kTileElems),
            collect());
        take_round();
    }
    final_from_ = std::min(final_from_, first);
}

GradientFacts StepPipeline::finish_gradients() {
    if (const auto last = std::exchange(encoding_block_, std::nullopt)) {
        put_payloads(*last);
    }
    for (const auto& device : devices_) {
        device->finish_gradients();
    }
    std::vector<double>& squares = squares_of_tile_;
    world_.sum(std::span(squares));
    const double norm = std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0));
    std::fill(squares.begin(), squares.end(), 0.0);
    return {norm, std::isfinite(norm)};
}

void StepPipeline::read_ahead(csd::ReadAhead order) { update_.read_ahead(generation_, order); }

void StepPipeline::drop_read_ahead() { update_.drop_read_ahead(); }

void StepPipeline::begin_update(const csd::StepScalars& scalars, std::span<std::byte> vector,
                                std::function<void()> after) {
    update_.begin(scalars, generation_, vector, std::move(after));
}

void StepPipeline::accept_update() {
    update_.accept();
    scatter_.accept();
}

UpdateTimes StepPipeline::finish_update() {
    const UpdateTimes times = update_.finish();
    ++generation_;
    return times;
}

void StepPipeline::commit(csd::StateCommit& log, const store::Commit& step) {
    world_.barrier();
    log.publish(step);
}

void StepPipeline::reserve() {
    for (const auto& device : devices_) {
        device->reserve();
    }
}

void StepPipeline::visit_subgroups(const SubgroupVisit& visit) {
    const auto& subgroups = copy_.partition.subgroups();
    for (std::size_t s = 0; s < subgroups.size(); ++s) {
        if (shard::owner_of(copy_.partition, copy_.devices, s) == copy_ranks_.rank()) {
            const ParameterUpdate::Place place = update_.place_of(s);
            visit(*devices_[place.device], place.subgroup, subgroups[s].tiles);
        }
    }
}

}  // namespace nearstep::offload
