// The update of an emulated device, by the host's threads and by a GPU. Called by its handler.
#include "base/error.hpp"
#include "codec/delta.hpp"
#include "csd/cpu_device_body.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <thread>

namespace nearstep::csd {

namespace {

using trace::Counter;

// Threads share an update by parts of a tile: with as many tiles as threads, the slowest thread
// would set the pace.
constexpr std::size_t kPartElems = 4 * arith::kPieceElems;
constexpr std::size_t kTileParts = shard::kTileElems / kPartElems;
static_assert(kTileParts * kPartElems == shard::kTileElems, "parts divide a tile");

}  // namespace

StatePointers CpuDevice::tile_of(std::span<std::byte> extent, std::size_t subgroup,
                                 std::size_t tile) {
    return state_of_tile(settings_.state, state_.payload_of(extent, subgroup),
                         layout().tiles_in(subgroup), tile);
}

// The gradient of a piece of a tile.
const void* CpuDevice::gradient(const Slot& slot, std::size_t local_tile, std::size_t tile,
                                std::size_t first, std::span<float> piece) const {
    if (is_on_host()) {
        return slot.gradients.data() + tile * kTileBytes + first * sizeof(float);
    }
    return payloads_->piece_of(local_tile, first, piece);
}

// Each piece is decoded and updated while it is in the first-level caches.
void CpuDevice::update_part(Slot& slot, std::size_t subgroup, std::size_t tile, std::size_t part,
                            const StepScalars& scalars, UpdateRun run) {
    alignas(64) std::array<float, arith::kPieceElems> piece;   // NOLINT: a decoder fills it
    alignas(64) std::array<float, arith::kPieceElems> unread;  // NOLINT: new parameters go nowhere
    const std::size_t local = layout().first_tile(subgroup) + tile;
    const std::size_t element =
        (settings_.subgroups[subgroup].tiles.begin + tile) * shard::kTileElems;
    const StatePointers old = tile_of(slot.old, subgroup, tile);
    const StatePointers updated = tile_of(slot.updated, subgroup, tile);
    run.gradient_dtype = payloads_ ? payloads_->piece_dtype() : Dtype::fp32;
    run.count = arith::kPieceElems;
    auto* parameters = static_cast<std::byte*>(run.parameters);
    const std::size_t end = (part + 1) * kPartElems;
    for (std::size_t first = part * kPartElems; first < end; first += run.count) {
        run.state = state_from(settings_.state, updated, first);
        if (is_mapped()) {
            run.old = state_from(settings_.state, old, first);
        }
        run.gradient = gradient(slot, local, tile, first, piece);
        run.parameters = parameters == nullptr
                             ? static_cast<void*>(unread.data())
                             : parameters + first * size_bytes(settings_.parameter_dtype);
        run.first = static_cast<std::uint32_t>(first);
        csd::update(*engine_, scalars, settings_.groups, element + first, run);
    }
}

UpdateRun CpuDevice::run_of(Slot& slot, std::size_t subgroup, std::size_t tile,
                            const StepScalars& scalars) {
    UpdateRun run;
    run.format = settings_.state;
    run.streams = settings_.delivery == Delivery::parameters;
    run.parameter_dtype = settings_.parameter_dtype;
    run.state = tile_of(slot.old, subgroup, tile);
    run.key = arith::tile_key(scalars.random_key, settings_.subgroups[subgroup].tiles.begin + tile);
    return run;
}

// Updates these tiles of the subgroup, and writes their parameters among the subgroup's.
void CpuDevice::update_tiles(Slot& slot, std::size_t subgroup, std::span<const std::size_t> tiles,
                             const StepScalars& scalars, std::span<std::byte> parameters) {
    settings_.executor->share(tiles.size() * kTileParts, [&](std::size_t i, int /*member*/) {
        const std::size_t tile = tiles[i / kTileParts];
        UpdateRun run = run_of(slot, subgroup, tile, scalars);
        if (!parameters.empty()) {
            run.parameters = parameters.data() + tile * tile_parameter_bytes();
        }
        update_part(slot, subgroup, tile, i % kTileParts, scalars, run);
    });
}

// Old parameters are rounded from old masters, as when they were new. The values of one tile stay
// in the cache.
void CpuDevice::update_to_deltas(Slot& slot, std::size_t subgroup, const StepScalars& scalars) {
    codec::DeltaWriter writer(slot.message, settings_.subgroups[subgroup].tiles);
    auto* old = reinterpret_cast<std::uint16_t*>(slot.parameters.data());
    for (std::size_t tile = 0; tile < layout().tiles_in(subgroup); ++tile) {
        UpdateRun run = run_of(slot, subgroup, tile, scalars);
        run.parameters = old;
        run.count = shard::kTileElems;
        engine_->round(run);
        run.parameters = old + shard::kTileElems;
        for (std::size_t part = 0; part < kTileParts; ++part) {
            update_part(slot, subgroup, tile, part, scalars, run);
        }
        writer.add(old, old + shard::kTileElems);
    }
    slot.message_bytes = writer.finish();
}

// The place of the new state in the storage. Waits while all spare ones are in use.
void CpuDevice::take_place(Slot& slot, std::size_t subgroup) {
    if (is_cached()) {  // the update is in place
        slot.updated = slot.old;
        if (!state_.is_in_turn(subgroup, slot.generation + 1)) {
            return;
        }
    }
    slot.place = state_.new_place_of(subgroup, slot.generation + 1);
    if (is_mapped()) {
        slot.updated = state_.map(subgroup, slot.place);
        // The last page has zeros, too, which pad the arrays to whole pages.
        std::ranges::copy(slot.old.last(store::kPageBytes),
                          slot.updated.last(store::kPageBytes).begin());
    }
}

// Takes the place of state that waits in a GPU, and moves there what the host has updated. Returns
// how far the place is from the memory in which the state waited.
std::ptrdiff_t CpuDevice::leave_waiting(Slot& slot, std::size_t subgroup) {
    if (!std::exchange(slot.waits_for_place, false)) {
        return 0;
    }
    const std::span<std::byte> waited = slot.updated;
    take_place(slot, subgroup);
    for (const std::size_t tile : slot.waiting_tiles) {
        copy_state(settings_.state, tile_of(waited, subgroup, tile), shard::kTileElems,
                   tile_of(slot.updated, subgroup, tile));
    }
    return slot.updated.data() - waited.data();
}

void CpuDevice::update(int slot, std::size_t subgroup, const StepScalars& scalars,
                       std::span<std::byte> destination) {
    Slot& s = allocated(slot);
    s.kept = kNone;
    if (is_cached()) {
        cached_[subgroup] = kChanging;
    }
    if (settings_.delivery == Delivery::none) {  // the vector is not written, so not pinned either
        destination = {};
    }
    const bool is_on_gpu = gpu_ && gpu_->takes(static_cast<std::size_t>(slot), destination);
    s.waits_for_place =
        is_mapped() && has_spare() && is_on_gpu && gpu_->was_read(static_cast<std::size_t>(slot));
    if (s.waits_for_place) {
        s.updated = s.waiting.span().first(layout().extent_bytes(subgroup));
    } else {
        take_place(s, subgroup);
    }
    const auto begin = std::chrono::steady_clock::now();
    if (has_deltas()) {
        update_to_deltas(s, subgroup, scalars);
    } else {
        const std::span<std::byte> parameters =
            destination.empty() ? destination
                                : place_of(destination, subgroup, parameter_bytes(subgroup));
        std::vector<std::size_t> tiles(layout().tiles_in(subgroup));
        std::iota(tiles.begin(), tiles.end(), std::size_t{0});
        if (is_on_gpu) {
            tiles = begin_on_gpu(static_cast<std::size_t>(slot), subgroup, scalars, parameters);
        }
        update_tiles(s, subgroup, tiles, scalars, parameters);
        if (s.waits_for_place) {
            s.waiting_tiles = std::move(tiles);
        }
    }
    if (settings_.updates_per_s > 0) {
        const double seconds =
            static_cast<double>(layout().tiles_in(subgroup) * shard::kTileElems) /
            settings_.updates_per_s;
        std::this_thread::sleep_until(begin + std::chrono::ceil<std::chrono::nanoseconds>(
                                                  std::chrono::duration<double>(seconds)));
    }
}

// Starts the update of the tiles with one group. Returns the others, which are the host's.
std::vector<std::size_t> CpuDevice::begin_on_gpu(std::size_t slot, std::size_t subgroup,
                                                 const StepScalars& scalars,
                                                 std::span<std::byte> parameters) {
    GpuTiles all;
    all.format = settings_.state;
    all.old = tile_of(slots_[slot].old, subgroup, 0);
    all.updated = tile_of(slots_[slot].updated, subgroup, 0);
    all.payloads = payloads_->of(layout().first_tile(subgroup), 0).data();
    all.payload_stride = payloads_->stride();
    all.sources = static_cast<unsigned>(settings_.sources);
    all.codec = *payloads_->codec().kernel_form();
    all.parameters = parameters.data();
    all.parameter_dtype = settings_.parameter_dtype;
    all.first_tile = settings_.subgroups[subgroup].tiles.begin;
    all.tiles = layout().tiles_in(subgroup);
    std::vector<std::size_t> others = gpu_->begin(slot, all, settings_.groups, scalars, tensors_);
    const std::size_t bytes = (all.tiles - others.size()) * (state_bytes(settings_.state, 64) / 64);
    if (!gpu_->was_read(slot)) {  // else read() counted it
        traffic_->add(Counter::gpu_state_read, bytes - gpu_->masters_in_tensors(slot));
    }
    traffic_->add(Counter::gpu_state_write, bytes);
    return others;
}

}  // namespace nearstep::csd
