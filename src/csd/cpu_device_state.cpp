// Reads and writes the state of an emulated device beside its updates. Called by the parameter
// reader, by restarts on another layout, and for checkpoints and changes of parameters.
#include "csd/cpu_device_body.hpp"

#include <algorithm>

namespace nearstep::csd {

namespace {

using trace::Counter;

}  // namespace

// Brings state up to this generation with its updates since it was stored. load() verifies it.
void CpuDevice::load_to_cache(std::size_t subgroup, std::int64_t generation) {
    state_.load(subgroup, generation, cached(subgroup));
    cached_[subgroup] = generation;
}

// A restart may have loaded a step first that it then gave up.
Ticket CpuDevice::store_repeated(std::int64_t generation) {
    for (std::atomic<std::int64_t>& cached : cached_) {
        if (cached != generation) {
            cached = kNone;
        }
    }
    return StoredDevice::store_repeated(generation);
}

// Another generation than the cache has is read beside it.
void CpuDevice::read_state(std::size_t subgroup, std::int64_t generation,
                           const StateArrays& state) {
    if (is_cached() && cached_[subgroup] == kNone) {
        load_to_cache(subgroup, generation);
    }
    if (!is_cached() || cached_[subgroup] != generation) {
        StoredDevice::read_state(subgroup, generation, state);
        return;
    }
    widen(settings_.state, state_.payload_of(cached(subgroup), subgroup), state);
    traffic_->add(Counter::checkpoint, layout().payload_bytes(subgroup));
}

void CpuDevice::write_state(std::size_t subgroup, std::int64_t generation,
                            const StateArrays& state) {
    if (subgroup < kept_slots_) {
        slots_[subgroup].kept = kNone;
    }
    if (!is_cached()) {
        StoredDevice::write_state(subgroup, generation, state);
        return;
    }
    cached_[subgroup] = kNone;
    state_.write_state(subgroup, generation, state, cached(subgroup));
    cached_[subgroup] = generation;
}

std::span<std::byte> CpuDevice::room_for(std::size_t subgroup, std::int64_t generation,
                                         memory::Buffer& memory) {
    if (!is_cached()) {
        return StoredDevice::room_for(subgroup, generation, memory);
    }
    cached_[subgroup] = kNone;
    const auto payload = state_.payload_of(cached(subgroup), subgroup);
    clear_after_arrays(settings_.state, payload, layout().tiles_in(subgroup));
    return payload;
}

void CpuDevice::write_stored(std::size_t subgroup, std::int64_t generation,
                             memory::Buffer& memory) {
    if (subgroup < kept_slots_) {
        slots_[subgroup].kept = kNone;
    }
    if (!is_cached()) {
        StoredDevice::write_stored(subgroup, generation, memory);
        return;
    }
    state_.write_extent(subgroup, generation, cached(subgroup));
    cached_[subgroup] = generation;
}

Ticket CpuDevice::read_masters(std::size_t subgroup, std::int64_t generation, std::size_t first,
                               std::span<std::byte> to) {
    if (!is_in_memory()) {
        return StoredDevice::read_masters(subgroup, generation, first, to);
    }
    return settings_.executor->submit([this, subgroup, generation, first, to] {
        const std::size_t begin = first * size_bytes(master_dtype(settings_.state));
        std::ranges::copy(masters_in_memory(subgroup, generation).subspan(begin, to.size()),
                          to.begin());
        traffic_->add(Counter::host_masters_read, to.size());
    });
}

std::span<const std::byte> CpuDevice::masters_in_memory(std::size_t subgroup,
                                                        std::int64_t generation) {
    if (is_cached() && cached_[subgroup] == kNone) {
        load_to_cache(subgroup, generation);
    }
    return state_.payload_of(is_cached()
                                 ? cached(subgroup)
                                 : state_.map(subgroup, state_.place_of(subgroup, generation)),
                             subgroup);
}

}  // namespace nearstep::csd
