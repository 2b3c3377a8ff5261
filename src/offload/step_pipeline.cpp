// The way of the gradients from a client's memory to the devices. Used by the engine's step.
#include "offload/step_pipeline.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace nearstep::offload {

using shard::kTileElems;

namespace {

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

// The routes of all rounds, block by block. A block's complete tiles are cut into rounds of about a
// stripe, last first: so each round has work for every owner. The same on all ranks.
std::vector<exchange::Route> all_rounds(const PipelineSettings& settings,
                                        const exchange::Routes& routes) {
    std::vector<exchange::Route> rounds;
    const std::size_t most = stripe_tiles(*settings.owners);
    for (const ElementRange block : settings.blocks) {
        const shard::TileRange tiles = complete_tiles(block);
        for (std::size_t end = tiles.end; end > tiles.begin;) {
            const std::size_t begin = std::max(tiles.begin, end - std::min(end, most));
            rounds.push_back(routes.of({begin, end}));
            end = begin;
        }
    }
    return rounds;
}

// There are none if a GPU's payloads need no messages here: then a block's payloads are taken all
// at once.
std::vector<exchange::Route> make_rounds(const PipelineSettings& settings,
                                         const exchange::Routes& routes) {
    const bool takes_blocks =
        settings.gpu && (settings.payload_ranks != nullptr || !routes.has_messages());
    return takes_blocks ? std::vector<exchange::Route>() : all_rounds(settings, routes);
}

bool has_joint_groups(const PipelineSettings& settings) {
    return settings.joint_groups.groups() > 0;
}

std::vector<exchange::Route> make_joint_rounds(const mpi::Communicator& world,
                                               const PipelineSettings& settings) {
    return has_joint_groups(settings)
               ? all_rounds(settings, JointSums::routes_of(settings, world.rank()))
               : std::vector<exchange::Route>();
}

std::optional<JointSums> make_joint(const mpi::Communicator& world,
                                    const PipelineSettings& settings,
                                    std::span<const exchange::Route> rounds,
                                    trace::Traffic& traffic) {
    std::optional<JointSums> joint;
    if (has_joint_groups(settings)) {
        joint.emplace(world, settings, rounds, traffic);
    }
    return joint;
}

// Returns the routes of the rank's gradients: to the owners, or to the slicers of its joint group.
exchange::Routes make_routes(const mpi::Communicator& world, const PipelineSettings& settings,
                             const std::optional<JointSums>& joint) {
    if (!joint) {
        return {*settings.owners, settings.groups, settings.nodes, world.rank(),
                settings.storage_ranks};
    }
    const std::vector<int>& ranks = settings.joint_groups.ranks_beside(world.rank());
    return {joint->slicers(), mpi::restrict_to(settings.groups, ranks),
            mpi::restrict_to(settings.nodes, ranks), joint->ranks().rank()};
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
      joint_rounds_(make_joint_rounds(world, settings_)),
      joint_(make_joint(world, settings_, joint_rounds_, traffic)),
      routes_(make_routes(world, settings_, joint_)),
      rounds_(make_rounds(settings_, routes_)),
      scatter_(joint_ ? joint_->ranks() : world, routes_,
               {.codec = settings_.codec,
                .most_payload_bytes = settings_.most_payload_bytes,
                .has_residual = settings_.has_error_feedback,
                .gradient_dtype = settings_.dtype,
                .links = settings_.links,
                .pool = settings_.pool},
               rounds_, traffic),
      assembly_(settings_.gpu || !computes() ? std::vector<ElementRange>() : settings_.blocks),
      owner_sums_(static_cast<std::size_t>(settings_.pool->members())),
      squares_of_tile_(settings_.owners->tiles()),
      gather_(copy_ranks_, gather_settings(), traffic) {
    expects(static_cast<int>(devices_.size()) == copy_.devices.count(copy_ranks_.rank()),
            "the rank has the devices that the map gives it");
    for (exchange::OwnerSum& sum : owner_sums_) {
        sum.begin_step(*settings_.codec, nullptr, 0);
    }
    expects(!joint_ || !settings_.has_error_feedback, "what is fed back is of a node's sums");
    if (settings_.gpu) {
        gpu_gradients_.emplace(gpu_settings());
    }
    const std::size_t most = stripe_tiles(*settings_.owners);
    for (const ElementRange block : settings_.blocks) {
        first_round_.push_back(first_round_.back() +
                               (complete_tiles(block).size() + most - 1) / most);
    }
    make_update(traffic);
}

// Ranks take the same slices on GPUs as on the host.
GpuGradientSettings StepPipeline::gpu_settings() const {
    const std::size_t members = settings_.groups.ranks_beside(world_.rank()).size();
    expects(!settings_.has_error_feedback, "what is fed back lies on the host");
    expects(settings_.gpu_group == nullptr
                ? members == 1
                : static_cast<std::size_t>(settings_.gpu_group->size()) == members,
            "a rank's group on GPUs has the ranks whose gradients are added");
    expects(settings_.payload_ranks == nullptr ||
                (routes_.owners().copies() == 1 && settings_.links == nullptr),
            "payloads between GPUs have one way each, and no shaped link on it");
    GpuGradientSettings out{
        .gpu = *settings_.gpu,
        .blocks = settings_.blocks,
        .routes = {},
        .most_payload_bytes =
            std::max(settings_.codec->payload_bytes(), settings_.most_payload_bytes),
        .dtype = settings_.dtype,
        .group = settings_.gpu_group,
        .payload_ranks = settings_.payload_ranks,
        .stream = settings_.gradient_stream,
        .squares = !joint_ && !routes_.has_messages() && members == 1 && routes_.sources() == 1 &&
                   std::ranges::none_of(devices_, &csd::Device::takes_sums)};
    for (const ElementRange block : settings_.blocks) {
        out.routes.push_back(routes_.of(complete_tiles(block)));
    }
    return out;
}

// Returns the rounds of one block; none if `rounds` is empty.
std::span<const exchange::Route> StepPipeline::rounds_of(const std::vector<exchange::Route>& rounds,
                                                         std::size_t block) const {
    const std::size_t first = first_round_[block];
    return rounds.empty() ? std::span<const exchange::Route>()
                          : std::span(rounds).subspan(first, first_round_[block + 1] - first);
}

void StepPipeline::begin_step(const exchange::StepEncoding& encoding, const codec::Codec* sum_codec,
                              const codec::Codec* of_nodes) {
    expects(joint_.has_value() == (of_nodes != nullptr), "nodes send sums of their own if joined");
    state_.enter(Stage::backward);
    exchange::StepEncoding first = encoding;
    if (joint_) {
        joint_->begin_step(*of_nodes, encoding);
        first.codec = of_nodes;
    }
    scatter_.begin_step(first);
    final_from_ = settings_.owners->tiles();
    sums_payloads_ = sum_codec != nullptr;
    for (exchange::OwnerSum& sum : owner_sums_) {
        sum.begin_step(*encoding.codec, sum_codec, exchange::source_key(encoding.random_key, 0));
    }
    if (gpu_gradients_) {
        gpu_gradients_->begin_step(*first.codec, scatter_.source_key());
    }
    for (const auto& device : devices_) {
        device->use_codec(sum_codec != nullptr ? *sum_codec : *encoding.codec);
    }
}

std::vector<int> StepPipeline::residual_ranks(std::size_t tile) const {
    std::vector<int> ranks;
    ranks.reserve(static_cast<std::size_t>(routes_.sources()));
    for (int group = 0; group < routes_.sources(); ++group) {
        ranks.push_back(routes_.slicer(group, tile));
    }
    std::ranges::sort(ranks);
    return ranks;
}

int StepPipeline::residual_heir(std::size_t tile) const {
    const int owner = settings_.owners->copy(0).owner_of_tile(tile);
    return routes_.slicer(settings_.groups.group_of[static_cast<std::size_t>(owner)], tile);
}

std::span<float> StepPipeline::gradient_space(std::size_t block) {
    return gpu_gradients_->space(block);
}

// `tiles`: of this rank, which owns them or, with joint groups, is their slicer. Then their sums
// travel in the joint rounds. `squares`: of each tile, if they are known.
void StepPipeline::take(std::span<const exchange::TilePayloads> tiles,
                        std::span<const exchange::Route> joint_rounds,
                        std::span<const double> squares) {
    if (!joint_) {
        take_owned(tiles, squares);
        return;
    }
    joint_->encode(tiles);
    for (const exchange::Route& round : joint_rounds) {
        take_owned(joint_->send(round));
    }
}

// Threads take single tiles, or all tiles of a device that needs them in order.
void StepPipeline::take_owned(std::span<const exchange::TilePayloads> tiles,
                              std::span<const double> squares) {
    expects(squares.empty() || squares.size() == tiles.size(), "each tile has its squares");
    std::vector<std::size_t> begins;
    std::size_t last_device = devices_.size();
    for (std::size_t i = 0; i < tiles.size(); ++i) {
        const std::size_t device = place_of(copy_.partition.subgroup_of_tile(tiles[i].tile)).device;
        if (device != last_device || !devices_[device]->takes_tiles_in_order()) {
            begins.push_back(i);
        }
        last_device = device;
    }
    begins.push_back(tiles.size());
    settings_.pool->share(begins.size() - 1, [&](std::size_t i, int member) {
        for (std::size_t at = begins[i]; at < begins[i + 1]; ++at) {
            take_tile(tiles[at], owner_sums_[static_cast<std::size_t>(member)],
                      squares.empty() ? nullptr : &squares[at]);
        }
    });
}

// Payloads whose squares are known are not decoded here.
void StepPipeline::take_tile(const exchange::TilePayloads& of, exchange::OwnerSum& sum,
                             const double* squares) {
    const bool counts = settings_.owners->copy_of(world_.rank()) == 0;
    const exchange::DevicePayloads to_device =
        squares != nullptr
            ? exchange::DevicePayloads{.payloads = of.payloads, .sum = {}, .squares = *squares}
            : sum.take(of.tile, of.payloads, counts ? copy_.partition.elems_in_tile(of.tile) : 0);
    squares_of_tile_[of.tile] = counts ? to_device.squares : 0;
    const Place place = place_of(copy_.partition.subgroup_of_tile(of.tile));
    devices_[place.device]->put_gradient(of.tile, to_device.payloads, to_device.sum);
}

// The host handles a block's payloads while the GPU computes the next block.
void StepPipeline::put_payloads(std::size_t block) {
    const exchange::Route& route = gpu_gradients_->route(block);
    const std::span<const std::byte> payloads = gpu_gradients_->payloads(block);
    const std::span<const exchange::Route> joint = rounds_of(joint_rounds_, block);
    if (gpu_gradients_->are_brought()) {
        take(scatter_.take_arrived(route, payloads), joint);
    } else if (!routes_.has_messages()) {
        take(scatter_.scatter_payloads(route, payloads), joint,
             sums_payloads_ ? std::span<const double>() : gpu_gradients_->squares(block));
    } else {
        const std::size_t bytes = payloads.size() / std::max<std::size_t>(route.sliced.size(), 1);
        std::size_t left = route.sliced.size();  // rounds come last first
        const std::span<const exchange::Route> rounds = rounds_of(rounds_, block);
        for (std::size_t i = 0; i < rounds.size(); ++i) {
            const std::size_t sliced = rounds[i].sliced.size();
            left -= sliced;
            take(scatter_.scatter_payloads(rounds[i],
                                           payloads.subspan(left * bytes, sliced * bytes)),
                 joint.empty() ? joint : joint.subspan(i, 1));
        }
    }
    final_from_ = std::min(final_from_, route.tiles.begin);
}

void StepPipeline::put_gradient(std::size_t block, const shard::Gradient& gradient) {
    expects(stage() == Stage::backward, "a step has begun before its gradients are put");
    if (is_updating()) {  // the last block's gradients reached the devices while this one was
                          // computed
        for (const auto& device : devices_) {
            device->finish_gradients();
        }
        release(final_from_);
    }
    if (gpu_gradients_) {
        gpu_gradients_->take(block, gradient);
        gpu_gradients_->encode(block);
        if (const auto before = std::exchange(encoding_block_, block)) {
            put_payloads(*before);
        }
        return;
    }
    const shard::TileRange tiles = complete_tiles(settings_.blocks[block]);
    const exchange::TileReader read = [this](std::size_t tile, std::span<float> values) {
        assembly_.read(tile, values);
    };
    if (computes()) {
        assembly_.take(settings_.blocks[block], gradient);
    }
    const std::span<const exchange::Route> rounds = rounds_of(rounds_, block);
    const std::span<const exchange::Route> joint = rounds_of(joint_rounds_, block);
    for (std::size_t i = 0; i < rounds.size(); ++i) {
        std::span<const exchange::TilePayloads> of_round;
        if (computes()) {
            of_round = scatter_.scatter(rounds[i], read);
        } else if (!joint_) {
            of_round = scatter_.scatter_payloads(rounds[i], {});
        }
        take(of_round, joint.empty() ? joint : joint.subspan(i, 1));
    }
    if (computes()) {
        assembly_.carry();
    }
    final_from_ = std::min(final_from_, tiles.begin);
}

GradientSum StepPipeline::finish_gradients() {
    if (const auto last = std::exchange(encoding_block_, std::nullopt)) {
        put_payloads(*last);
    }
    for (const auto& device : devices_) {
        device->finish_gradients();
    }
    std::vector<double>& squares = squares_of_tile_;
    world_.sum(std::span(squares));
    const double norm = std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0));
    std::ranges::fill(squares, 0.0);
    state_.enter(Stage::summed);
    return {norm, std::isfinite(norm)};
}

void StepPipeline::commit(csd::StateCommit& log, const store::Commit& step) {
    world_.barrier();
    log.publish(step);
}

std::vector<std::vector<std::size_t>> StepPipeline::lent_ends() const {
    std::vector<std::vector<std::size_t>> ends;
    for (const auto& device : devices_) {
        if (device->lent_bytes() == 0) {
            continue;
        }
        const auto tiles_before = [&](std::size_t end) {
            std::size_t count = 0;
            for (const shard::Subgroup& subgroup : device->subgroups()) {
                count += std::clamp(end, subgroup.tiles.begin, subgroup.tiles.end) -
                         subgroup.tiles.begin;
            }
            return count;
        };
        const std::size_t tile_bytes =
            device->lent_bytes() / tiles_before(settings_.owners->tiles());
        ends.emplace_back();
        for (const ElementRange block : settings_.blocks) {
            ends.back().push_back(tiles_before(complete_tiles(block).end) * tile_bytes);
        }
    }
    return ends;
}

std::vector<OwnedSubgroup> StepPipeline::subgroups() const {
    std::vector<OwnedSubgroup> owned;
    const auto& subgroups = copy_.partition.subgroups();
    for (std::size_t s = 0; s < subgroups.size(); ++s) {
        if (shard::owner_of(copy_.partition, copy_.devices, s) == copy_ranks_.rank()) {
            const Place place = place_of(s);
            owned.push_back({devices_[place.device].get(), place.subgroup, subgroups[s].tiles});
        }
    }
    return owned;
}

}  // namespace nearstep::offload
