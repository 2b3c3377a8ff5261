// Memory, slots and transfers of an emulated device; cpu_device_update.cpp has its update, and
// cpu_device_state.cpp what reads and writes its state beside updates.
// Made by the engine, trials and benchmarks.
#include "base/error.hpp"
#include "codec/delta.hpp"
#include "csd/cpu_device_body.hpp"

#include <algorithm>
#include <vector>

namespace nearstep::csd {

namespace {

using trace::Counter;

// With a GPU more subgroups are in work at once. Slots of mapped state take little memory, so each
// subgroup has one, and is sealed when its parameters no longer wait for the cores.
constexpr std::size_t kReadingWithGpu = 16;

constexpr std::size_t kMostSlots = 1024;
constexpr std::size_t kPinnedAtOnce = 16 * MiB;
constexpr std::size_t kHugePage = 2 * MiB;  // a slot's memory is whole ones

// Slots beyond those that keep one subgroup each are free for any subgroup. If not all subgroups
// fit in slots, at least `kLeastSharedSlots` slots are free, and at least one in `kSharedOf`.
constexpr std::size_t kLeastSharedSlots = 8;
constexpr std::size_t kSharedOf = 4;

// Every `kReadAgain`-th update reads a kept subgroup from storage again, so that a drive that lost
// a confirmed write is noticed.
constexpr std::int64_t kReadAgain = 64;

}  // namespace

CpuDevice::CpuDevice(const DeviceSettings& settings, trace::Traffic& traffic)
    : StoredDevice(settings, traffic),
      engine_(&best_engine()),
      slots_(static_cast<std::size_t>(settings.slots)),
      sealed_(settings.subgroups.size()),
      cached_(settings.subgroups.size()) {
    std::ranges::fill(sealed_, kNone);
    std::ranges::fill(cached_, kNone);
    if (is_cached()) {
        cache_ = memory::Buffer(layout().subgroups() * layout().most_extent_bytes());
        logger_.emplace(1);
    }
    if (is_on_host()) {
        staging_.emplace(state_.volume(), layout().gradient_offset(0));
    } else {
        payloads_.emplace(*settings.codec, settings.most_payload_bytes, layout().tiles(),
                          static_cast<std::size_t>(settings.sources),
                          keeps_log() ? PayloadMemory::Place::logged : PayloadMemory::Place::own);
        if (settings.links != nullptr) {
            gradients_.emplace(settings.links->to_storage(), settings.links->clock());
        }
        add_slots();
        make_gpu_engine();
    }
}

// Slots that `bytes` of memory have room for. There are never more than one per subgroup and one
// that is being written.
std::size_t CpuDevice::most_slots_of(std::size_t bytes, std::size_t bytes_of_slot) const {
    return std::min({bytes / bytes_of_slot, settings_.subgroups.size() + 1, kMostSlots});
}

// Adds slots, most of which keep state. No slot keeps state where the engine has the rate of a
// card, whose memory is small.
void CpuDevice::add_slots() {
    if (is_cached()) {
        slots_.resize(std::max(slots_.size(), kReadingWithGpu));
    }
    if (is_in_memory()) {
        return;
    }
    const std::size_t of_slot = round_up(sizes_of_slot().all(), kHugePage);
    slots_.resize(std::max(slots_.size(), most_slots_of(settings_.read_ahead_bytes, of_slot)));
    if (settings_.updates_per_s == 0) {
        const std::size_t all = settings_.subgroups.size();
        const KeptSlots kept = slots_that_keep(settings_.read_ahead_bytes, of_slot);
        kept_slots_ = all <= kept.if_all_fit ? all : kept.otherwise;
    }
}

bool CpuDevice::holds(const Slot& slot, std::size_t subgroup, std::int64_t generation) const {
    return subgroup < kept_slots_ && &slot == &slots_[subgroup] && generation >= 0 &&
           slot.kept == generation &&
           (generation + static_cast<std::int64_t>(subgroup)) % kReadAgain != 0;
}

CpuDevice::SlotSizes CpuDevice::sizes_of_slot() const {
    return {.extent = is_in_memory() ? 0 : layout().most_extent_bytes(),
            .gradients = is_on_host() ? layout().most_tiles() * kTileBytes : 0,
            .parameters = has_deltas() ? 2 * tile_parameter_bytes() : 0,
            .message = has_deltas() ? message_room_bytes() : 0};
}

void CpuDevice::make_gpu_engine() {
    if (!settings_.gpu || layout().tiles() == 0 || !is_in_memory() ||
        settings_.delivery == Delivery::deltas || settings_.links != nullptr ||
        settings_.updates_per_s > 0) {
        return;
    }
    const std::size_t bytes =
        layout().most_extent_bytes() +
        (settings_.delivery == Delivery::none ? 0 : layout().most_tiles() * tile_parameter_bytes());
    const std::size_t on_gpu =
        std::min(most_slots_of(settings_.gpu_read_ahead_bytes, bytes), settings_.subgroups.size());
    slots_.resize(on_gpu + std::max(slots_.size(), kReadingWithGpu + settings_.subgroups.size()));
    gpu_.emplace(GpuEngineSettings{
        .gpu = *settings_.gpu,
        .lanes = slots_.size(),
        .lanes_on_gpu = on_gpu,
        .lane_bytes = bytes,
        .thread_blocks = std::max(1U, kThreadBlocks / static_cast<unsigned>(settings_.helped))});
}

int CpuDevice::reading_slots() const {
    const int all = Device::reading_slots();
    return gpu_ ? std::min(all, static_cast<int>(kReadingWithGpu)) : all;
}

std::string CpuDevice::describe_io() const {
    std::size_t bytes = cache_.size();
    std::vector<const memory::Buffer*> buffers = {&cache_};
    for (const Slot& slot : slots_) {
        bytes += slot.memory.size();
        buffers.push_back(&slot.memory);
    }
    const std::size_t huge = std::min(bytes, memory::huge_page_bytes(buffers));
    return text(is_mapped() ? "mapped memory" : describe_transport(), ", ",
                human_bytes(static_cast<double>(bytes)), " of buffers of which ",
                human_bytes(static_cast<double>(huge)), " on huge pages",
                gpu_ ? gpu_->describe() : "");
}

CpuDevice::Slot& CpuDevice::allocated(int slot) {
    Slot& found = slots_.at(static_cast<std::size_t>(slot));
    expects(found.is_allocated, "a slot is allocated before it is used");
    return found;
}

void CpuDevice::reserve() {
    for (Slot& slot : slots_) {
        slot.kept = kNone;
    }
    std::ranges::fill(cached_, kNone);
    // The GPU would go on with the pages that expect_updates() showed it.
    expects(!gpu_ || !gpu_->has_pinned(), "storage is reserved before the first update");
    StoredDevice::reserve();
}

void CpuDevice::expect_updates() {
    hold_payloads();
    if (gpu_) {
        // A client copies what it keeps in lent memory, and CUDA copies nothing that is pinned in
        // part. So that is one piece.
        const std::size_t most = std::max(kPinnedAtOnce, lent_bytes());
        std::vector<std::span<const std::byte>> pieces;
        for (std::span<const std::byte> rest = payloads_->span(); !rest.empty();) {
            pieces.push_back(rest.first(std::min(rest.size(), most)));
            rest = rest.subspan(pieces.back().size());
        }
        for (std::size_t s = 0; is_cached() && s < layout().subgroups(); ++s) {
            pieces.emplace_back(cached(s));
        }
        for (std::size_t place = 0; is_mapped() && has_spare() && place < layout().places();
             ++place) {
            pieces.emplace_back(
                state_.volume().map(layout().place_offset(place), layout().most_extent_bytes()));
        }
        for (std::size_t s = 0; !has_spare() && s < layout().subgroups(); ++s) {
            for (int place = 0; place < StateLayout::kPlaces; ++place) {
                pieces.emplace_back(state_.map(s, layout().extent_offset(s, place)));
            }
        }
        gpu_->pin(std::move(pieces));
    }
}

// Payloads lie in the only log, where they are as durable as the state. A restart reads it first.
void CpuDevice::hold_payloads() {
    if (keeps_log()) {
        std::call_once(holds_payloads_, [this] {
            if (is_cached()) {
                payloads_->lie_in(memory::Buffer(round_up(payloads_->bytes(), store::kPageBytes)),
                                  0);
            } else {
                state_.log_of(0).hold(*payloads_);
            }
        });
    }
}

// The log of cached state is written while the update runs, and is waited for with flush().
void CpuDevice::keep_update(std::int64_t generation, const StepScalars& scalars) {
    if (!keeps_log()) {
        return;
    }
    hold_payloads();
    const auto keep = [this, generation, scalars, groups = settings_.groups] {
        state_.keep_update(generation, *payloads_, scalars, groups);
        state_.log_of(generation).flush();
    };
    if (is_cached()) {
        logged_ = logger_->submit(keep);
    } else {
        keep();
    }
}

Ticket CpuDevice::flush() {
    Ticket all = StoredDevice::flush();
    all.add(std::exchange(logged_, Ticket()));
    return all;
}

void CpuDevice::use_codec(const codec::Codec& codec) {
    if (payloads_) {
        payloads_->use(codec);
    }
}

void CpuDevice::put_gradient(std::size_t tile, Payloads payloads, std::span<const float> sum) {
    const std::size_t local = state_.local_tile(tile);
    if (is_on_host()) {
        staging_->put(local, sum);
        traffic_->add(Counter::host_gradients_write, kTileBytes);
    } else {
        hold_payloads();
        const std::size_t bytes = payloads_->put(local, payloads);
        traffic_->add(Counter::host_gradients_write, bytes);
        if (gradients_) {
            gradients_->add(bytes);
        }
    }
}

void CpuDevice::finish_gradients() {
    if (staging_) {
        staging_->finish();
    } else if (gradients_) {
        gradients_->wait();
    }
}

void CpuDevice::allocate_slot(int slot) {
    Slot& made = slots_.at(static_cast<std::size_t>(slot));
    expects(!made.is_allocated, "a slot is allocated once");
    const SlotSizes bytes = sizes_of_slot();
    made.memory = memory::Buffer(bytes.all());
    const std::span<std::byte> all = made.memory.span();
    made.extent = all.first(bytes.extent);
    made.gradients = all.subspan(bytes.extent, bytes.gradients);
    made.message = all.last(bytes.message);
    made.parameters = all.last(bytes.message + bytes.parameters).first(bytes.parameters);
    if (has_spare() && slot < ahead_slots()) {
        made.waiting = memory::Buffer::untouched(layout().most_extent_bytes());
    }
    made.is_allocated = true;
}

void CpuDevice::release_slot(int slot) { slots_.at(static_cast<std::size_t>(slot)) = Slot(); }

Ticket CpuDevice::read(int slot, std::size_t subgroup, std::int64_t generation) {
    Slot& s = allocated(slot);
    Ticket reading;
    s.generation = generation;
    if (is_in_memory()) {
        s.old = is_cached() ? cached(subgroup)
                            : state_.map(subgroup, state_.place_of(subgroup, generation));
        if (is_cached() && cached_[subgroup] != generation) {  // as after a step was given up
            load_to_cache(subgroup, generation);
        }
        if (gpu_) {
            expect_updates();  // where nobody did before
            const auto state = state_.payload_of(s.old, subgroup);
            if (gpu_->read(static_cast<std::size_t>(slot), state)) {
                traffic_->add(Counter::gpu_state_read, state.size());
            }
        }
    } else if (holds(s, subgroup, generation)) {
        return {};
    } else {
        s.kept = kNone;
        s.old = s.extent.first(layout().extent_bytes(subgroup));
        s.updated = s.old;
        reading = state_.volume().read(s.old, state_.place_of(subgroup, generation));
    }
    if (is_cached()) {
        return {};
    }
    if (is_on_host()) {
        reading.add(state_.volume().read(s.gradients.first(layout().gradient_bytes(subgroup)),
                                         layout().gradient_offset(subgroup)));
    }
    return settings_.executor->after(std::move(reading), [this, &s, subgroup, generation] {
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

Ticket CpuDevice::deliver(int slot, std::size_t subgroup, std::span<std::byte> destination,
                          const DeliveryCallback& on_delivered) {
    if (settings_.delivery == Delivery::none) {
        allocated(slot).on_delivered = on_delivered;
        const auto lane = static_cast<std::size_t>(slot);
        return gpu_ && gpu_->has_updated(lane) ? gpu_->deliver(lane, [] {}) : Ticket();
    }
    if (has_deltas()) {
        const Slot& s = allocated(slot);
        std::ranges::copy(s.message.first(s.message_bytes),
                          place_of(destination, subgroup, s.message_bytes).begin());
        cross_host_link(s.message_bytes);
    } else if (!is_on_host()) {  // update() wrote them to their place
        const auto lane = static_cast<std::size_t>(slot);
        if (gpu_ && gpu_->has_updated(lane)) {
            const std::size_t stayed = gpu_->bytes_in_tensors(lane);
            traffic_->add(Counter::gpu_parameters, stayed);
            cross_host_link(parameter_bytes(subgroup) - stayed);
            return gpu_->deliver(lane, on_delivered);
        }
        cross_host_link(parameter_bytes(subgroup));
    }
    on_delivered();
    return {};
}

// Counts new parameters and limits them to the link's rate.
void CpuDevice::cross_host_link(std::size_t bytes) {
    traffic_->add(Counter::host_parameters, bytes);
    if (settings_.links != nullptr) {
        const shaping::Clock& clock = settings_.links->clock();
        shaping::cross(settings_.links->to_host(), clock.now(), bytes, clock);
    }
}

// Extents are sealed while others are updated and written; with a GPU, when no update needs help.
// State that shares places is marked first, so that others need not wait for the place of the old.
Ticket CpuDevice::write(int slot, std::size_t subgroup, std::int64_t generation) {
    Slot& s = allocated(slot);
    Ticket here;
    if (gpu_) {
        here = gpu_->write(static_cast<std::size_t>(slot),
                           [this, &s, subgroup] { return leave_waiting(s, subgroup); });
    }
    const auto land = [&s] {
        if (const DeliveryCallback on_delivered = std::exchange(s.on_delivered, nullptr)) {
            on_delivered();
        }
    };
    if (is_mapped() && has_spare()) {
        here = finished(settings_.executor->after(std::move(here),
                                                  [this, &s, subgroup, generation] {
                                                      state_.mark(s.updated, subgroup, generation);
                                                  }),
                        subgroup, generation)
                   .then(land);
    }
    if (is_cached()) {
        here = here.then([this, subgroup, generation, land] {
            cached_[subgroup] = generation;
            land();
        });
        if (!state_.is_in_turn(subgroup, generation)) {
            return here;
        }
    }
    const auto seal_and_write = [this, &s, subgroup, generation] {
        state_.seal(s.updated, subgroup, generation);
        sealed_[subgroup] = generation;
        if (!is_mapped()) {
            return finished(state_.volume().write(s.updated, s.place), subgroup, generation);
        }
        state_.volume().note_written(s.updated.size());
        return Ticket();
    };
    Ticket written = settings_.executor->after(
        std::move(here), seal_and_write, gpu_ ? Executor::Place::last : Executor::Place::in_turn);
    return written.then([this, &s, subgroup, generation, land] {
        s.kept = generation;
        traffic_->add(is_on_host() ? Counter::host_state_write : Counter::internal_write,
                      layout().payload_bytes(subgroup));
        land();
    });
}

// Frees the place of the old state when the new one is stored.
Ticket CpuDevice::finished(Ticket stored, std::size_t subgroup, std::int64_t generation) {
    if (!has_spare()) {
        return stored;
    }
    const Completion done;
    stored.on_complete([this, done, subgroup, generation](const std::exception_ptr& error) {
        if (error) {
            state_.fail(error);
        } else {
            state_.finish(subgroup, generation);
        }
        done.complete(error);
    });
    return done.ticket();
}

std::size_t slot_bytes(StateFormat format, std::size_t tiles) {
    return round_up(store::kHeaderBytes + state_bytes(format, tiles), kHugePage);
}

KeptSlots slots_that_keep(std::size_t read_ahead_bytes, std::size_t bytes_of_slot) {
    const std::size_t slots = std::min(read_ahead_bytes / bytes_of_slot, kMostSlots);
    const std::size_t shared = std::max(kLeastSharedSlots, slots / kSharedOf);
    return {.if_all_fit = slots - std::min<std::size_t>(slots, 1),  // one is written meanwhile
            .otherwise = slots - std::min(slots, shared)};
}

std::unique_ptr<Device> make_cpu_device(const DeviceSettings& settings, trace::Traffic& traffic) {
    expects(settings.executor != nullptr, "an emulated device has an executor");
    prepare_storage(settings);
    return std::make_unique<CpuDevice>(settings, traffic);
}

}  // namespace nearstep::csd
