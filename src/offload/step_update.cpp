// The update of the rank's devices, and the way of new parameters to all ranks of its copy while
// the client computes. Used by the engine's step.
#include "base/error.hpp"
#include "base/stopwatch.hpp"
#include "offload/step_pipeline.hpp"

#include <algorithm>
#include <utility>

namespace nearstep::offload {

exchange::ParameterGatherSettings StepPipeline::gather_settings() const {
    // With parts, the holders of each copy of the parameters get a tile once, as if they were a
    // node with one vector.
    mpi::Topology nodes =
        mpi::restrict_to(has_parts() ? settings_.holders : settings_.nodes, copy_.ranks);
    mpi::Topology vectors = has_parts() ? nodes
                            : settings_.sharers.groups() > 0
                                ? mpi::restrict_to(settings_.sharers, copy_.ranks)
                                : mpi::Topology();
    const auto first_storage =
        std::ranges::lower_bound(copy_.ranks, world_.size() - settings_.storage_ranks);
    const int storage_nodes =
        nodes.groups() - nodes.groups_below(static_cast<int>(first_storage - copy_.ranks.begin()));
    return {.partition = &copy_.partition,
            .devices = &copy_.devices,
            .parameter_dtype = settings_.dtype,
            .nodes = std::move(nodes),
            .vectors = std::move(vectors),
            .storage_nodes = storage_nodes,
            .has_deltas = has_deltas(),
            .links = settings_.links};
}

// Between the holders of a copy of the parameters: from the one that keeps a tile to the others.
exchange::ParameterGatherSettings StepPipeline::bring_settings() const {
    exchange::ParameterGatherSettings settings = gather_settings();
    const std::vector<int>& holders = settings_.holders.ranks_beside(world_.rank());
    for (const shard::Subgroup& subgroup : copy_.partition.subgroups()) {
        settings.sources.push_back(
            settings_.holders.rank_in_group(holder_of(subgroup.tiles.begin)));
    }
    settings.nodes = mpi::restrict_to(settings_.nodes, holders);
    settings.vectors = {};
    settings.storage_nodes = 0;
    return settings;
}

// The rank that keeps the tile among the holders of this rank's copy of the parameters.
int StepPipeline::holder_of(std::size_t tile) const {
    const int group = settings_.holders.group_of[static_cast<std::size_t>(world_.rank())];
    return exchange::relay_of(settings_.holders, group, copy_.owner_of_tile(tile));
}

void StepPipeline::make_update(trace::Traffic& traffic) {
    for (std::size_t device = 0; device < devices_.size(); ++device) {
        handlers_.push_back(
            std::make_unique<csd::TransferHandler>(settings_.handler, *devices_[device]));
        if (has_deltas()) {
            messages_.emplace_back(message_room_bytes(device) *
                                   devices_[device]->subgroups().size());
        }
    }
    if (settings_.synchronised.most_beside() > 1) {
        const mpi::Topology synchronised = mpi::restrict_to(settings_.synchronised, copy_.ranks);
        synchronised_.emplace(
            copy_ranks_.split(synchronised.group_of[static_cast<std::size_t>(copy_ranks_.rank())]));
    }
    if (has_parts()) {
        holders_.emplace(
            world_.split(settings_.holders.group_of[static_cast<std::size_t>(world_.rank())]));
        bring_.emplace(*holders_, bring_settings(), traffic);
        is_held_.resize(settings_.owners->tiles());
    }
}

// The thread of ending_ waits for the handlers, and these wait for tiles that are not yet released.
StepPipeline::~StepPipeline() {
    try {
        if (state_.update() == UpdateStage::accepted) {
            finish_update();
        } else if (is_updating()) {
            cancel_update();
        }
    } catch (const Error&) {  // from devices or from ranks that left: nobody handles it
    }
}

StepPipeline::Place StepPipeline::place_of(std::size_t subgroup) const {
    const shard::Subgroup& found = copy_.partition.subgroups()[subgroup];
    return {static_cast<std::size_t>(found.device - copy_.devices.first(copy_ranks_.rank())),
            found.index};
}

bool StepPipeline::has_parameters(std::size_t subgroup) {
    const Place place = place_of(subgroup);
    return handlers_[place.device]->has_parameters(place.subgroup);
}

// A device's messages lie side by side, each with room for the largest.
std::size_t StepPipeline::message_room_bytes(std::size_t device) const {
    const int number = copy_.devices.first(copy_ranks_.rank()) + static_cast<int>(device);
    return codec::message_room_bytes(copy_.partition.largest_subgroup_tiles(number));
}

std::span<const std::byte> StepPipeline::find_message(std::size_t subgroup) {
    if (!has_parameters(subgroup)) {
        return {};
    }
    const Place place = place_of(subgroup);
    const std::size_t room = message_room_bytes(place.device);
    return messages_[place.device].span().subspan(place.subgroup * room, room);
}

void StepPipeline::read_ahead(csd::ReadAhead order) {
    if (state_.update() == UpdateStage::reading && order == order_) {
        return;
    }
    drop_read_ahead();
    state_.enter(UpdateStage::reading);
    order_ = order;
    for (const auto& handler : handlers_) {
        handler->read_ahead(generation_, order);
    }
}

void StepPipeline::drop_read_ahead() {
    if (state_.update() == UpdateStage::reading) {
        for (const auto& handler : handlers_) {
            handler->drop_read_ahead();
        }
        state_.enter(UpdateStage::none);
    }
}

void StepPipeline::begin_update(const csd::StepScalars& scalars, std::function<void()> after) {
    expects(!has_deltas() || has_equal_copies_,
            "all ranks hold the parameters that deltas are against");
    state_.enter(UpdateStage::begun);
    synchronised_until_ = 0;
    gathered_ = std::nullopt;
    began_ = std::nullopt;
    for (std::size_t device = 0; device < handlers_.size(); ++device) {
        handlers_[device]->begin(
            scalars, generation_,
            has_deltas() ? messages_[device].span() : settings_.vector->span());
    }
    ending_ = ending_worker_.submit([this, after = std::move(after)] {
        for (const auto& handler : handlers_) {
            handler->finish();
        }
        written_ = Clock::now();
        if (state_.update() == UpdateStage::accepted) {
            after();
        }
        ended_ = Clock::now();
    });
}

// The gradients of all tiles from `first` on are with the devices, and nobody reads these tiles'
// parameters in vectors any more. Devices may write new ones to this rank's vector; other ranks get
// none before the update is accepted.
void StepPipeline::release(std::size_t first) {
    for (std::size_t device = 0; device < handlers_.size(); ++device) {
        const std::vector<shard::Subgroup>& subgroups = devices_[device]->subgroups();
        const auto whole = std::partition_point(
            subgroups.begin(), subgroups.end(),
            [&](const auto& subgroup) { return subgroup.tiles.begin < first; });
        // Later ones wait until the update is accepted.
        const std::size_t begins =
            state_.update() == UpdateStage::accepted
                ? 0
                : subgroups.size() -
                      std::min(subgroups.size(), devices_[device]->most_unaccepted());
        handlers_[device]->release(
            std::max(begins, static_cast<std::size_t>(whole - subgroups.begin())));
    }
    if (!began_ && first < copy_.partition.tiles()) {
        began_ = Clock::now();
    }
}

void StepPipeline::accept_update() {
    state_.enter(UpdateStage::accepted);
    state_.enter(Stage::ending);
    scatter_.accept();
    accept(generation_ + 1);
    release(0);
    if (has_deltas()) {
        gather_.begin_deltas(settings_.vector->span(),
                             [this](std::size_t s) { return find_message(s); });
    } else {
        gather_.begin(settings_.vector->span(),
                      [this](std::size_t s) { return has_parameters(s); });
    }
}

void StepPipeline::cancel_update() {
    for (const auto& handler : handlers_) {
        handler->cancel();
    }
    ending_.wait();
    state_.enter(UpdateStage::none);
    accept(generation_);
}

void StepPipeline::accept(std::int64_t generation) {
    settings_.pool->share(devices_.size(), [&](std::size_t device, int /*member*/) {
        devices_[device]->accept(generation);
    });
}

void StepPipeline::keep_update(const csd::StepScalars& scalars) {
    for (const auto& device : devices_) {
        device->keep_update(generation_ + 1, scalars);
    }
}

bool StepPipeline::skip_update() {
    const bool has_begun = is_updating();
    if (has_begun) {
        cancel_update();
    } else {
        drop_read_ahead();
    }
    state_.enter(Stage::ending);
    return has_begun;
}

void StepPipeline::note_gathered() {
    if (!gathered_ && gather_.is_over()) {
        gathered_ = Clock::now();
    }
}

// Before this barrier, other ranks of the node may still write to the shared vector or wait for
// parameters from this rank. They write again only after all ranks have sent the next gradients,
// when all have read the vector.
void StepPipeline::synchronise(std::size_t end) {
    if (synchronised_ && end > synchronised_until_) {
        synchronised_->barrier();
        synchronised_until_ = end;
    }
}

// Blocks until the parameters before tile `end` are final. Then moves the others on without
// waiting, since MPI moves data only inside its calls.
void StepPipeline::advance(std::size_t end) {
    gather_.advance(end);
    synchronise(end);
    gather_.poll();
    note_gathered();
}

bool StepPipeline::must_await() const {
    return has_parts() || state_.update() == UpdateStage::accepted;
}

void StepPipeline::await(std::span<const ElementRange> now, std::span<const ElementRange> later) {
    if (!must_await()) {
        return;
    }
    Stopwatch watch;
    if (!has_parts()) {
        std::size_t end = 0;
        for (const ElementRange& range : now) {  // to the end of its block
            const auto block =
                std::ranges::lower_bound(settings_.blocks, range.end, {}, &ElementRange::end);
            end = std::max(end, shard::tiles_of(block->end));
        }
        advance(end);
    } else {
        hold(now, later);
    }
    if (state_.update() == UpdateStage::accepted) {
        const double waited = watch.lap();
        times_.waited_s += waited;
        waited_seconds_ += waited;
    }
}

void StepPipeline::finish_update() {
    if (state_.update() != UpdateStage::accepted) {
        return;
    }
    Stopwatch watch;
    gather_.finish();
    synchronise(copy_.partition.tiles());
    note_gathered();
    ending_.wait();
    state_.enter(UpdateStage::none);
    ++generation_;
    const auto seconds = [](Clock::duration time) {
        return std::chrono::duration<double>(time).count();
    };
    const double waited = watch.lap();
    times_.update_s = seconds(std::max(written_, gathered_.value_or(written_)) - *began_);
    times_.devices_s = seconds(written_ - *began_);
    times_.after_s = seconds(ended_ - written_);
    times_.waited_s += waited;
    waited_seconds_ += waited;
}

UpdateTimes StepPipeline::finish_step() {
    finish_update();
    state_.enter(Stage::idle);
    UpdateTimes times = std::exchange(times_, {});
    exchange::ParameterGather::Waits waits = gather_.take_waits();
    times.waits.all = waits.all;
    for (const auto& [source, seconds] : waits.for_late) {
        times.waits.for_late[copy_.ranks[static_cast<std::size_t>(source)]] = seconds;
    }
    return times;
}

void StepPipeline::gather() {
    gather_.gather(settings_.vector->span(), [](std::size_t) { return true; });
    if (synchronised_) {
        synchronised_->barrier();
    }
    has_equal_copies_ = true;
}

// True for each tile with an element in the ranges.
std::vector<bool> StepPipeline::tiles_of(std::span<const ElementRange> ranges) const {
    std::vector<bool> is_in(settings_.owners->tiles(), false);
    for (const ElementRange range : ranges) {
        const std::size_t end = shard::tiles_of(range.end);
        for (std::size_t tile = range.begin / shard::kTileElems; tile < end; ++tile) {
            is_in[tile] = true;
        }
    }
    return is_in;
}

// The tiles that the rank keeps always stay; others take memory only while they are held.
void StepPipeline::hold(std::span<const ElementRange> now, std::span<const ElementRange> later) {
    if (!has_parts()) {
        return;
    }
    const std::vector<bool> is_now = tiles_of(now);
    const std::vector<bool> is_later = tiles_of(later);
    const std::size_t tile_bytes = shard::kTileElems * size_bytes(settings_.dtype);
    std::vector<shard::TileRange> missing;
    for (std::size_t tile = 0; tile < is_held_.size(); ++tile) {
        if (is_now[tile] && !is_held_[tile]) {
            if (missing.empty() || missing.back().end != tile) {
                missing.push_back({tile, tile});
            }
            missing.back().end = tile + 1;
            is_held_[tile] = true;
        } else if (is_held_[tile] && !is_now[tile] && !is_later[tile]) {
            is_held_[tile] = false;
            if (holder_of(tile) != world_.rank()) {
                settings_.vector->drop(tile * tile_bytes, tile_bytes);
            }
        }
    }
    if (state_.update() == UpdateStage::accepted && !missing.empty()) {
        advance(missing.back().end);  // new ones reach those that keep them
    }
    bring_->bring(settings_.vector->span(), missing, [](std::size_t) { return true; });
}

}  // namespace nearstep::offload
