#include "csd/emulated_device.hpp"

#include "base/error.hpp"
#include "base/thread_pool.hpp"
#include "codec/delta.hpp"
#include "csd/gradient_staging.hpp"
#include "csd/payload_memory.hpp"
#include "csd/state_format.hpp"
#include "csd/state_layout.hpp"
#include "csd/state_volume.hpp"
#include "memory/buffer.hpp"
#include "store/folder.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

namespace nearstep::csd {

namespace {

using trace::Counter;

constexpr std::size_t kPieceBytes = arith::kPieceElems * sizeof(float);

// Threads share an update by parts of a tile: with as many tiles as threads, the slowest thread
// would set the pace.
constexpr std::size_t kPartElems = 4 * arith::kPieceElems;
constexpr std::size_t kTileParts = shard::kTileElems / kPartElems;
static_assert(kTileParts * kPartElems == shard::kTileElems, "parts divide a tile");

StateVolumeSettings unshaped_volume_of(const EmulatedDeviceSettings& settings) {
    return {.name = settings.name,
            .subgroups = settings.subgroups,
            .state = settings.state,
            .has_gradients = settings.place == UpdatePlace::on_host,
            .digest = settings.digest,
            .volume = {.files = settings.files, .io = settings.io, .storage = settings.storage}};
}

StateVolumeSettings volume_of(const EmulatedDeviceSettings& settings) {
    StateVolumeSettings state = unshaped_volume_of(settings);
    if (settings.links != nullptr) {
        const auto place = settings.place == UpdatePlace::on_host
                               ? link::DrivePlace::behind_host_link
                               : link::DrivePlace::near_engine;
        for (std::size_t file = 0; file < settings.files.size(); ++file) {
            state.volume.paths.push_back(settings.links->add_drive(place));
        }
        state.volume.clock = &settings.links->clock();
    }
    return state;
}

class EmulatedDevice : public Device {
public:
    EmulatedDevice(const EmulatedDeviceSettings& settings, trace::Traffic& traffic);

    const std::string& name() const override { return settings_.name; }
    const std::vector<shard::Subgroup>& subgroups() const override { return settings_.subgroups; }
    int slots() const override { return settings_.slots; }
    std::string describe_io() const override;
    std::vector<std::uint64_t> written_bytes() const override {
        return state_.volume().written_bytes();
    }
    void reserve() override { state_.volume().reserve(); }
    Ticket flush() override { return state_.volume().sync(); }
    void use_codec(const codec::Codec& codec) override;
    void use_groups(const GroupMap& groups) override { settings_.groups = groups; }
    void put_gradient(std::size_t tile, Payloads payloads, std::span<const float> sum) override;
    bool takes_tiles_in_order() const override { return gradients_.has_value(); }
    void finish_gradients() override;
    void allocate_slot(int slot) override;
    void release_slot(int slot) override;
    Ticket read(int slot, std::size_t subgroup, std::int64_t generation) override;
    void update(int slot, std::size_t subgroup, const StepScalars& scalars,
                std::span<std::byte> landing) override;
    Ticket deliver(int slot, std::size_t subgroup, std::span<std::byte> landing,
                   const Landed& landed) override;
    Ticket write(int slot, std::size_t subgroup, std::int64_t generation) override;
    void read_state(std::size_t subgroup, std::int64_t generation,
                    const StateArrays& state) override {
        state_.read_state(subgroup, generation, state);
    }
    void write_state(std::size_t subgroup, std::int64_t generation,
                     const StateArrays& state) override {
        state_.write_state(subgroup, generation, state);
    }

private:
    // Spans of one buffer, each large enough for the largest subgroup.
    struct Slot {
        memory::Buffer memory;
        std::span<std::byte> extent;     // header and arrays; empty if storage is mapped
        std::span<std::byte> gradients;  // on_host only
        // For each member of the pool: the sum of the payloads of a piece of a tile, and their
        // list.
        std::span<float> pieces;
        std::vector<std::span<const std::byte>> payloads;
        std::span<std::byte> parameters;  // with deltas: the old and new ones of a tile
        // The subgroup's extents before and after its update: both in the slot's memory, or the two
        // places in mapped storage.
        std::span<std::byte> old;
        std::span<std::byte> updated;
        std::span<std::byte> message;  // with deltas
        std::size_t message_bytes = 0;
        Ticket reading;
        Ticket sealing;
        Ticket writing;  // set once sealing is complete
    };

    Slot& allocated(int slot);
    bool is_on_host() const { return settings_.place == UpdatePlace::on_host; }
    bool is_mapped() const { return !is_on_host() && state_.volume().is_mapped(); }
    bool has_deltas() const { return settings_.delivery == Delivery::deltas; }
    std::size_t message_room_bytes() const {
        return codec::message_room_bytes(layout().most_tiles());
    }
    std::size_t tile_parameter_bytes() const {
        return shard::kTileElems * size_bytes(settings_.parameter_dtype);
    }
    const StateLayout& layout() const { return state_.layout(); }
    // The subgroup's parameters in the parameter vector.
    std::span<std::byte> place_of(std::span<std::byte> landing, std::size_t subgroup) const;
    void cross_host_link(std::size_t bytes);
    StatePointers tile_of(std::span<std::byte> extent, std::size_t subgroup, std::size_t tile);
    const void* gradient(Slot& slot, std::size_t member, std::size_t local_tile, std::size_t tile,
                         std::size_t first);
    void update_part(Slot& slot, std::size_t member, std::size_t subgroup, std::size_t tile,
                     std::size_t part, const StepScalars& scalars, UpdateRun run);

    EmulatedDeviceSettings settings_;
    trace::Traffic* traffic_;
    const Engine* engine_;
    std::optional<PayloadMemory> payloads_;  // near_storage only
    std::vector<Slot> slots_;
    StateVolume state_;
    // For each subgroup the last generation that write() sealed; -1: none.
    std::vector<std::atomic<std::int64_t>> sealed_;
    std::optional<GradientStaging> staging_;  // on_host only
    ThreadPool pool_;
    std::optional<link::TransferQueue> gradients_;  // near_storage and shaped only
    // Checksums are computed here, in parallel with the engine. Declared last, so that these
    // threads end first.
    store::Worker read_worker_;
    // One per slot: a single thread digests more slowly than all threads update.
    std::vector<std::unique_ptr<store::Worker>> sealers_;
    store::Worker write_worker_;
};

EmulatedDevice::EmulatedDevice(const EmulatedDeviceSettings& settings, trace::Traffic& traffic)
    : settings_(settings),
      traffic_(&traffic),
      engine_(&best_engine()),
      slots_(static_cast<std::size_t>(settings.slots)),
      state_(volume_of(settings), traffic),
      sealed_(settings.subgroups.size()),
      pool_(settings.threads, ThreadPool::Priority::background) {
    std::ranges::fill(sealed_, -1);
    for (int slot = 0; slot < settings.slots; ++slot) {
        sealers_.push_back(std::make_unique<store::Worker>());
    }
    if (is_on_host()) {
        staging_.emplace(state_.volume(), layout().gradient_offset(0));
    } else {
        payloads_.emplace(*settings.codec, settings.most_payload_bytes, layout().tiles(),
                          static_cast<std::size_t>(settings.sources));
        if (settings.links != nullptr) {
            gradients_.emplace(settings.links->to_storage(), settings.links->clock());
        }
    }
}

std::string EmulatedDevice::describe_io() const {
    std::size_t bytes = 0;
    std::size_t huge = 0;
    for (const Slot& slot : slots_) {
        bytes += slot.memory.size();
        huge += std::min(slot.memory.size(), slot.memory.huge_page_bytes());
    }
    const std::string way = is_mapped()
                                ? "mapped memory"
                                : text(store::name_of(state_.volume().io()),
                                       state_.volume().is_direct() ? ", direct" : ", page cache");
    return text(way, ", ", human_bytes(static_cast<double>(bytes)), " of buffers of which ",
                human_bytes(static_cast<double>(huge)), " on huge pages");
}

EmulatedDevice::Slot& EmulatedDevice::allocated(int slot) {
    Slot& found = slots_.at(static_cast<std::size_t>(slot));
    expects(!found.pieces.empty(), "a slot is allocated before it is used");
    return found;
}

void EmulatedDevice::use_codec(const codec::Codec& codec) {
    if (payloads_) {
        payloads_->use(codec);
    }
}

void EmulatedDevice::put_gradient(std::size_t tile, Payloads payloads, std::span<const float> sum) {
    const std::size_t local = state_.local_tile(tile);
    if (is_on_host()) {
        staging_->put(local, sum);
        traffic_->add(Counter::host_gradients_write, kTileBytes);
    } else {
        const std::size_t bytes = payloads_->put(local, payloads);
        traffic_->add(Counter::host_gradients_write, bytes);
        if (gradients_) {
            gradients_->add(bytes);
        }
    }
}

void EmulatedDevice::finish_gradients() {
    if (staging_) {
        staging_->finish();
    } else if (gradients_) {
        gradients_->wait();
    }
}

void EmulatedDevice::allocate_slot(int slot) {
    Slot& made = slots_.at(static_cast<std::size_t>(slot));
    expects(made.pieces.empty(), "a slot is allocated once");
    const auto members = static_cast<std::size_t>(pool_.threads());
    const std::size_t tiles = layout().most_tiles();
    const std::size_t extent_bytes = is_mapped() ? 0 : layout().most_extent_bytes();
    const std::size_t gradient_bytes = is_on_host() ? tiles * kTileBytes : 0;
    const std::size_t parameter_bytes = has_deltas() ? 2 * tile_parameter_bytes() : 0;
    const std::size_t message_bytes = has_deltas() ? message_room_bytes() : 0;
    made.memory = memory::Buffer(extent_bytes + gradient_bytes + members * kPieceBytes +
                                 parameter_bytes + message_bytes);
    const std::span<std::byte> all = made.memory.span();
    made.extent = all.first(extent_bytes);
    made.gradients = all.subspan(extent_bytes, gradient_bytes);
    made.pieces = {reinterpret_cast<float*>(all.data() + extent_bytes + gradient_bytes),
                   members * arith::kPieceElems};
    made.message = all.last(message_bytes);
    made.parameters = all.last(message_bytes + parameter_bytes).first(parameter_bytes);
    made.payloads.resize(members * static_cast<std::size_t>(settings_.sources));
}

void EmulatedDevice::release_slot(int slot) { slots_.at(static_cast<std::size_t>(slot)) = Slot(); }

Ticket EmulatedDevice::read(int slot, std::size_t subgroup, std::int64_t generation) {
    Slot& s = allocated(slot);
    if (is_mapped()) {
        s.old = state_.map(subgroup, generation);
        s.updated = state_.map(subgroup, generation + 1);
    } else {
        s.old = s.extent.first(layout().extent_bytes(subgroup));
        s.updated = s.old;
        s.reading = state_.volume().read(s.old, layout().extent_offset(subgroup, generation));
    }
    if (is_on_host()) {
        s.reading.add(state_.volume().read(s.gradients.first(layout().gradient_bytes(subgroup)),
                                           layout().gradient_offset(subgroup)));
    }
    return read_worker_.submit([this, &s, subgroup, generation] {
        s.reading.wait();
        // Mapped state that this process has sealed never left its memory.
        if (!is_mapped() || sealed_[subgroup] != generation) {
            state_.verify(s.old, subgroup, generation);
        }
        traffic_->add(is_on_host() ? Counter::host_state_read : Counter::internal_read,
                      layout().payload_bytes(subgroup));
        if (is_on_host()) {
            traffic_->add(Counter::host_gradients_read, layout().gradient_bytes(subgroup));
        }
    });
}

StatePointers EmulatedDevice::tile_of(std::span<std::byte> extent, std::size_t subgroup,
                                      std::size_t tile) {
    return state_of_tile(settings_.state, state_.payload_of(extent, subgroup),
                         layout().tiles_in(subgroup), tile);
}

// The gradient of a piece of a tile. A single bf16 payload is not decoded: the engine widens it.
const void* EmulatedDevice::gradient(Slot& slot, std::size_t member, std::size_t local_tile,
                                     std::size_t tile, std::size_t first) {
    if (is_on_host()) {
        return slot.gradients.data() + tile * kTileBytes + first * sizeof(float);
    }
    if (payloads_->is_single(Dtype::bf16)) {
        return payloads_->of(local_tile, 0).data() + first * size_bytes(Dtype::bf16);
    }
    const auto sources = static_cast<std::size_t>(settings_.sources);
    const std::span<float> piece =
        slot.pieces.subspan(member * arith::kPieceElems, arith::kPieceElems);
    payloads_->sum(local_tile, first, std::span(slot.payloads).subspan(member * sources, sources),
                   piece);
    return piece.data();
}

// Each piece is decoded and updated while it is in the first-level caches.
void EmulatedDevice::update_part(Slot& slot, std::size_t member, std::size_t subgroup,
                                 std::size_t tile, std::size_t part, const StepScalars& scalars,
                                 UpdateRun run) {
    const std::size_t local = layout().first_tile(subgroup) + tile;
    const std::size_t element =
        (settings_.subgroups[subgroup].tiles.begin + tile) * shard::kTileElems;
    const StatePointers old = tile_of(slot.old, subgroup, tile);
    const StatePointers updated = tile_of(slot.updated, subgroup, tile);
    run.gradient_dtype = payloads_ && payloads_->is_single(Dtype::bf16) ? Dtype::bf16 : Dtype::fp32;
    run.count = arith::kPieceElems;
    auto* parameters = static_cast<std::byte*>(run.parameters);
    const std::size_t end = (part + 1) * kPartElems;
    for (std::size_t first = part * kPartElems; first < end; first += run.count) {
        run.state = state_from(settings_.state, updated, first);
        if (is_mapped()) {
            run.old = state_from(settings_.state, old, first);
        }
        run.gradient = gradient(slot, member, local, tile, first);
        run.parameters = parameters + first * size_bytes(settings_.parameter_dtype);
        run.first = static_cast<std::uint32_t>(first);
        csd::update(*engine_, scalars, settings_.groups, element + first, run);
    }
}

std::span<std::byte> EmulatedDevice::place_of(std::span<std::byte> landing,
                                              std::size_t subgroup) const {
    const std::size_t begin = settings_.subgroups[subgroup].tiles.begin * tile_parameter_bytes();
    const std::size_t bytes = layout().tiles_in(subgroup) * tile_parameter_bytes();
    expects(begin + bytes <= landing.size(), "the parameter vector has room for the subgroup");
    return landing.subspan(begin, bytes);
}

void EmulatedDevice::update(int slot, std::size_t subgroup, const StepScalars& scalars,
                            std::span<std::byte> landing) {
    Slot& s = allocated(slot);
    const std::size_t tiles = layout().tiles_in(subgroup);
    std::optional<codec::DeltaWriter> writer;
    if (has_deltas()) {
        writer.emplace(s.message, settings_.subgroups[subgroup].tiles);
    }
    if (is_mapped()) {
        // Also copies the zeros that pad the arrays to whole pages.
        std::ranges::copy(s.old.last(store::kPageBytes), s.updated.last(store::kPageBytes).begin());
    }
    const auto begin = std::chrono::steady_clock::now();
    const auto run_of = [&](std::size_t tile) {
        UpdateRun run;
        run.format = settings_.state;
        run.streams = !has_deltas();
        run.parameter_dtype = settings_.parameter_dtype;
        run.state = tile_of(s.old, subgroup, tile);
        run.key =
            arith::tile_key(scalars.random_key, settings_.subgroups[subgroup].tiles.begin + tile);
        return run;
    };
    if (!has_deltas()) {
        std::byte* parameters = place_of(landing, subgroup).data();
        pool_.share(tiles * kTileParts, [&](std::size_t i, int member) {
            const std::size_t tile = i / kTileParts;
            UpdateRun run = run_of(tile);
            run.parameters = parameters + tile * tile_parameter_bytes();
            update_part(s, static_cast<std::size_t>(member), subgroup, tile, i % kTileParts,
                        scalars, run);
        });
    } else {
        for (std::size_t tile = 0; tile < tiles; ++tile) {
            // Old parameters are rounded from old masters, as when they were new. The values of one
            // tile stay in the cache.
            UpdateRun run = run_of(tile);
            auto* old = reinterpret_cast<std::uint16_t*>(s.parameters.data());
            run.parameters = old;
            run.count = shard::kTileElems;
            engine_->round(run);
            run.parameters = old + shard::kTileElems;
            for (std::size_t part = 0; part < kTileParts; ++part) {
                update_part(s, 0, subgroup, tile, part, scalars, run);
            }
            writer->add(old, old + shard::kTileElems);
        }
    }
    s.message_bytes = writer ? writer->finish() : 0;
    if (settings_.updates_per_s > 0) {
        const double seconds =
            static_cast<double>(tiles * shard::kTileElems) / settings_.updates_per_s;
        std::this_thread::sleep_until(begin + std::chrono::ceil<std::chrono::nanoseconds>(
                                                  std::chrono::duration<double>(seconds)));
    }
}

Ticket EmulatedDevice::deliver(int slot, std::size_t subgroup, std::span<std::byte> landing,
                               const Landed& landed) {
    if (has_deltas()) {
        const Slot& s = allocated(slot);
        const auto place = landing.subspan(subgroup * message_room_bytes(), s.message_bytes);
        std::ranges::copy(s.message.first(s.message_bytes), place.begin());
        cross_host_link(s.message_bytes);
    } else if (!is_on_host()) {  // update() wrote them to their place
        cross_host_link(place_of(landing, subgroup).size());
    }
    landed();
    return {};
}

// Counts new parameters and limits them to the link's rate.
void EmulatedDevice::cross_host_link(std::size_t bytes) {
    traffic_->add(Counter::host_parameters, bytes);
    if (settings_.links != nullptr) {
        const link::Clock& clock = settings_.links->clock();
        link::cross(settings_.links->to_host(), clock.now(), bytes, clock);
    }
}

// Extents are sealed while others are updated and written.
Ticket EmulatedDevice::write(int slot, std::size_t subgroup, std::int64_t generation) {
    Slot& s = allocated(slot);
    s.sealing = sealers_[static_cast<std::size_t>(slot)]->submit([this, &s, subgroup, generation] {
        state_.seal(s.updated, subgroup, generation);
        sealed_[subgroup] = generation;
        if (is_mapped()) {
            state_.volume().note_written(s.updated.size());
        } else {
            s.writing =
                state_.volume().write(s.updated, layout().extent_offset(subgroup, generation));
        }
    });
    return write_worker_.submit([this, &s, subgroup] {
        s.sealing.wait();
        s.writing.wait();
        traffic_->add(is_on_host() ? Counter::host_state_write : Counter::internal_write,
                      layout().payload_bytes(subgroup));
    });
}

}  // namespace

std::size_t storage_bytes(const EmulatedDeviceSettings& settings) {
    return StateVolume::storage_bytes(unshaped_volume_of(settings));
}

std::unique_ptr<Device> make_emulated_device(const EmulatedDeviceSettings& settings,
                                             trace::Traffic& traffic) {
    const bool is_on_host = settings.place == UpdatePlace::on_host;
    expects(settings.files.size() == 1 || (is_on_host && !settings.files.empty()),
            "a device near storage has one file, one on the host has one or more");
    expects(settings.slots >= 1, "a device has a slot");
    expects(is_on_host || (settings.codec != nullptr && settings.sources >= 1),
            "a device near storage has a codec and a source of gradients");
    expects(settings.delivery == Delivery::parameters ||
                (!is_on_host && size_bytes(settings.parameter_dtype) == sizeof(std::uint16_t)),
            "deltas leave devices near storage and are of 16-bit parameters");
    const std::size_t bytes_of_each = storage_bytes(settings) / settings.files.size();
    std::vector<store::PlannedFile> planned;
    for (const std::string& file : settings.files) {
        planned.push_back({file, bytes_of_each});
    }
    store::check_folders(planned);
    return std::make_unique<EmulatedDevice>(settings, traffic);
}

}  // namespace nearstep::csd
