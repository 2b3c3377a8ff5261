// The class behind make_cpu_device(). Only its own sources include this.
#pragma once

#include "csd/cpu_device.hpp"
#include "csd/gpu_engine.hpp"
#include "csd/gradient_staging.hpp"
#include "csd/payload_memory.hpp"
#include "csd/state_format.hpp"
#include "memory/buffer.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nearstep::csd {

class CpuDevice : public StoredDevice {
public:
    CpuDevice(const DeviceSettings& settings, trace::Traffic& traffic);

    int slots() const override { return static_cast<int>(slots_.size()); }
    int kept_slots() const override { return static_cast<int>(kept_slots_); }
    int ahead_slots() const override { return gpu_ ? static_cast<int>(gpu_->lanes_on_gpu()) : 0; }
    int reading_slots() const override;
    std::string describe_io() const override;
    void reserve() override;
    void expect_updates() override;
    void use_codec(const codec::Codec& codec) override;
    std::size_t most_unaccepted() const override {
        return is_cached() ? 0 : layout().has_spare() ? layout().spare() : layout().subgroups();
    }
    void keep_update(std::int64_t generation, const StepScalars& scalars) override;
    Ticket flush() override;
    void deliver_to(GpuTensors* tensors) override { tensors_ = tensors; }
    void put_gradient(std::size_t tile, Payloads payloads, std::span<const float> sum) override;
    bool takes_sums() const override { return is_on_host(); }
    bool takes_tiles_in_order() const override { return gradients_.has_value(); }
    void finish_gradients() override;
    // A GPU reaches what it has pinned. The log of cached state is still written from there while a
    // client adds up its next gradients.
    std::size_t lent_bytes() const override {
        const bool is_reached = gpu_.has_value() == settings_.gpu.has_value();
        return is_mapped() && is_reached && settings_.delivery == Delivery::none
                   ? payloads_->bytes()
                   : 0;
    }
    std::span<std::byte> lent_memory() override { return payloads_->span(); }
    void allocate_slot(int slot) override;
    void release_slot(int slot) override;
    Ticket read(int slot, std::size_t subgroup, std::int64_t generation) override;
    void update(int slot, std::size_t subgroup, const StepScalars& scalars,
                std::span<std::byte> destination) override;
    Ticket deliver(int slot, std::size_t subgroup, std::span<std::byte> destination,
                   const DeliveryCallback& on_delivered) override;
    Ticket write(int slot, std::size_t subgroup, std::int64_t generation) override;
    void read_state(std::size_t subgroup, std::int64_t generation,
                    const StateArrays& state) override;
    void write_state(std::size_t subgroup, std::int64_t generation,
                     const StateArrays& state) override;
    std::span<std::byte> room_for(std::size_t subgroup, std::int64_t generation,
                                  memory::Buffer& memory) override;
    void write_stored(std::size_t subgroup, std::int64_t generation,
                      memory::Buffer& memory) override;
    Ticket read_masters(std::size_t subgroup, std::int64_t generation, std::size_t first,
                        std::span<std::byte> to) override;
    bool shows_masters() const override {
        return is_in_memory() && (gpu_ ? gpu_->has_pinned_all() : !settings_.gpu);
    }
    Ticket store_repeated(std::int64_t generation) override;
    std::span<const std::byte> masters_in_memory(std::size_t subgroup,
                                                 std::int64_t generation) override;

private:
    static constexpr std::int64_t kNone = -1;
    static constexpr std::int64_t kChanging = -2;

    // Spans of one buffer, each large enough for the largest subgroup.
    struct Slot {
        memory::Buffer memory;
        std::span<std::byte> extent;      // header and arrays; empty if storage is mapped
        std::span<std::byte> gradients;   // on_host only
        std::span<std::byte> parameters;  // with deltas: the old and new ones of a tile
        // The subgroup's extents before and after its update: both in the slot's memory, both in
        // its cache, or the two places in mapped storage.
        std::span<std::byte> old;
        std::span<std::byte> updated;
        std::int64_t generation = 0;  // of `old`
        std::int64_t place = 0;       // of the new state in the storage
        // With spare places, for state that leaves a GPU late and takes its place then: memory
        // laid out like the extent, and the tiles that the host has updated in it.
        memory::Buffer waiting;
        std::vector<std::size_t> waiting_tiles;
        bool waits_for_place = false;
        std::span<std::byte> message;  // with deltas
        std::size_t message_bytes = 0;
        // The generation of the subgroup's state that both this slot and the storage hold; kNone
        // for a slot that keeps no state.
        std::int64_t kept = kNone;
        DeliveryCallback on_delivered;  // without delivery: what write() calls
        bool is_allocated = false;
    };

    // Bytes of a slot's parts, in the order in which they lie.
    struct SlotSizes {
        std::size_t extent = 0;
        std::size_t gradients = 0;
        std::size_t parameters = 0;
        std::size_t message = 0;
        std::size_t all() const { return extent + gradients + parameters + message; }
    };

    SlotSizes sizes_of_slot() const;
    Slot& allocated(int slot);
    bool is_on_host() const { return settings_.place == UpdatePlace::on_host; }
    bool has_spare() const { return layout().has_spare(); }
    bool keeps_log() const { return settings_.keeps_log && has_spare(); }
    void hold_payloads();
    Ticket finished(Ticket stored, std::size_t subgroup, std::int64_t generation);
    void take_place(Slot& slot, std::size_t subgroup);
    std::ptrdiff_t leave_waiting(Slot& slot, std::size_t subgroup);
    bool is_mapped() const { return !is_on_host() && !is_cached() && state_.volume().is_mapped(); }
    bool is_in_memory() const { return is_mapped() || is_cached(); }
    // Whether all state is in memory, too, and is stored in turns.
    bool is_cached() const { return state_.has_turns(); }
    std::span<std::byte> cached(std::size_t subgroup) {
        return cache_.span().subspan(subgroup * layout().most_extent_bytes(),
                                     layout().extent_bytes(subgroup));
    }
    void load_to_cache(std::size_t subgroup, std::int64_t generation);
    std::size_t parameter_bytes(std::size_t subgroup) const {
        return layout().tiles_in(subgroup) * tile_parameter_bytes();
    }
    void cross_host_link(std::size_t bytes);
    StatePointers tile_of(std::span<std::byte> extent, std::size_t subgroup, std::size_t tile);
    const void* gradient(const Slot& slot, std::size_t local_tile, std::size_t tile,
                         std::size_t first, std::span<float> piece) const;
    void update_part(Slot& slot, std::size_t subgroup, std::size_t tile, std::size_t part,
                     const StepScalars& scalars, UpdateRun run);
    UpdateRun run_of(Slot& slot, std::size_t subgroup, std::size_t tile,
                     const StepScalars& scalars);
    void update_tiles(Slot& slot, std::size_t subgroup, std::span<const std::size_t> tiles,
                      const StepScalars& scalars, std::span<std::byte> parameters);
    void update_to_deltas(Slot& slot, std::size_t subgroup, const StepScalars& scalars);
    std::size_t most_slots_of(std::size_t bytes, std::size_t bytes_of_slot) const;
    void add_slots();
    bool holds(const Slot& slot, std::size_t subgroup, std::int64_t generation) const;
    void make_gpu_engine();
    std::vector<std::size_t> begin_on_gpu(std::size_t slot, std::size_t subgroup,
                                          const StepScalars& scalars,
                                          std::span<std::byte> parameters);

    const UpdateEngine* engine_;
    std::optional<PayloadMemory> payloads_;  // near_storage only
    std::once_flag holds_payloads_;          // in the log
    std::vector<Slot> slots_;
    std::size_t kept_slots_ = 0;
    // For each subgroup the last generation that write() sealed; kNone: none.
    std::vector<std::atomic<std::int64_t>> sealed_;
    memory::Buffer cache_;  // of all state, if is_cached()
    // The generation of each subgroup there; kNone: none; kChanging: an update is at work.
    std::vector<std::atomic<std::int64_t>> cached_;
    Ticket logged_;                           // the last update, on its drive
    std::optional<GradientStaging> staging_;  // on_host only
    std::optional<GpuEngine> gpu_;            // mapped state only
    std::atomic<GpuTensors*> tensors_ = nullptr;
    std::optional<shaping::TransferQueue> gradients_;  // near_storage and shaped only
    std::optional<Executor> logger_;  // if is_cached(); last, so that it ends first
};

}  // namespace nearstep::csd
