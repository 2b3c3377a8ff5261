// The places of a device's state that subgroups share, and the log that repeats an update. The part
// of StateVolume that knows of them.
#include "base/error.hpp"
#include "csd/state_volume.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace nearstep::csd {

namespace {

// The header of a log has the number of no subgroup.
constexpr std::uint64_t kLogSubgroup = std::numeric_limits<std::uint64_t>::max();

}  // namespace

store::SubgroupHeader StateVolume::header_of_log(std::int64_t generation) const {
    return {.layout = layout_digest_,
            .subgroup = kLogSubgroup,
            .generation = generation,
            .state = state_};
}

shard::ElementRange StateVolume::range() const {
    return {settings_.subgroups.front().tiles.begin * shard::kTileElems,
            settings_.subgroups.back().tiles.end * shard::kTileElems};
}

// Reads the header of each place, once.
void StateVolume::look_for_places() {
    const std::lock_guard lock(looking_);
    if (std::exchange(has_looked_, true)) {
        return;
    }
    memory::Buffer page(store::kHeaderBytes);
    std::optional<std::int64_t> other;
    bool has_own = false;
    const std::size_t held = std::min(volume_.held_bytes(), layout_.addressed_bytes());
    for (std::size_t place = 0; (place + 1) * layout_.most_extent_bytes() <= held; ++place) {
        const std::int64_t offset = layout_.place_offset(place);
        volume_.read(page.span(), offset, store::Speed::full).wait();
        const auto found = store::version_in(page.span(), layout_digest_);
        if (!found || found->subgroup >= layout_.subgroups()) {
            continue;
        }
        if (store::is_of_other_state(header_of(0, 0), page.span())) {
            other = other.value_or(offset);
            continue;
        }
        has_own = true;
        places_->note(found->subgroup, found->generation, place);
    }
    if (other && !has_own) {
        volume_.read(page.span(), *other, store::Speed::full).wait();
        refuse_other_state(page.span(), 0, 0, *other);
    }
}

std::optional<std::int64_t> StateVolume::find_place(std::size_t subgroup, std::int64_t generation) {
    if (!places_) {
        return layout_.extent_offset(subgroup, generation);
    }
    look_for_places();
    const auto place = places_->find(subgroup, generation);
    return place ? std::optional(layout_.place_offset(*place)) : std::nullopt;
}

std::int64_t StateVolume::place_of(std::size_t subgroup, std::int64_t generation) {
    const auto found = find_place(subgroup, generation);
    if (!found) {
        refuse(text("no place holds its generation ", generation), subgroup, generation);
    }
    return *found;
}

std::int64_t StateVolume::new_place_of(std::size_t subgroup, std::int64_t generation) {
    return places_ ? layout_.place_offset(places_->take(subgroup, generation))
                   : layout_.extent_offset(subgroup, generation);
}

void StateVolume::finish(std::size_t subgroup, std::int64_t generation) {
    if (places_) {
        places_->finish(subgroup, generation);
    }
}

void StateVolume::fail(const std::exception_ptr& error) {
    if (places_) {
        places_->fail(error);
    }
}

// A version that was given up must not be found by a restart, for the run makes it anew.
void StateVolume::settle(std::int64_t generation) {
    if (!places_) {
        return;
    }
    look_for_places();
    const std::vector<std::size_t> given_up = places_->settle(generation);
    const memory::Buffer zeros(given_up.empty() ? 0 : store::kHeaderBytes);
    for (const std::size_t place : given_up) {
        volume_.write(zeros.span(), layout_.place_offset(place), store::Speed::full).wait();
    }
    move_back();
    const std::lock_guard lock(looking_);
    read_log_ = std::nullopt;
    update_ = std::nullopt;
}

// Places are lent while a program changes all masters. The header goes last, so that a restart
// finds no half of a version.
void StateVolume::move_back() {
    memory::Buffer extent;
    while (const auto move = places_->take_back()) {
        const std::int64_t from = layout_.place_offset(move->from);
        const std::int64_t to = layout_.place_offset(move->to);
        if (volume_.is_mapped()) {
            const std::span<std::byte> old = map(move->subgroup, from);
            const std::span<std::byte> fresh = map(move->subgroup, to);
            std::ranges::copy(old.subspan(store::kHeaderBytes),
                              fresh.subspan(store::kHeaderBytes).begin());
            std::ranges::copy(old.first(store::kHeaderBytes), fresh.begin());
        } else {
            if (extent.size() == 0) {
                extent = memory::Buffer(layout_.most_extent_bytes());
            }
            const auto bytes = extent.span().first(layout_.extent_bytes(move->subgroup));
            volume_.read(bytes, from, store::Speed::full).wait();
            volume_
                .write(bytes.subspan(store::kHeaderBytes),
                       to + static_cast<std::int64_t>(store::kHeaderBytes), store::Speed::full)
                .wait();
            volume_.write(bytes.first(store::kHeaderBytes), to, store::Speed::full).wait();
        }
        volume_.free(from, layout_.most_extent_bytes());
    }
}

void StateVolume::check_log(std::int64_t generation) {
    if (places_) {
        look_for_places();
        places_->forget_before(generation - 1);
    }
    for (std::size_t s = 0; places_ && s < layout_.subgroups(); ++s) {
        if (!find_place(s, generation)) {
            update_to(generation);
            return;
        }
    }
}

// The update of the log that makes this generation; null if it has another.
const LoggedUpdate* StateVolume::update_to(std::int64_t generation) {
    const std::lock_guard lock(looking_);
    if (read_log_ != generation) {
        update_ = log_->read(header_of_log(generation), layout_.tiles(), range());
        read_log_ = generation;
    }
    return update_ ? &*update_ : nullptr;
}

void StateVolume::repeat(std::size_t subgroup, std::int64_t generation, const LoggedUpdate& update,
                         std::span<std::byte> extent) {
    update.apply(layout_, settings_.subgroups, subgroup, payload_of(extent, subgroup));
    if (settings_.keeps_repeated) {
        store_extent(subgroup, generation, extent);
        places_->forget_before(generation, subgroup);
    }
}

void StateVolume::store_extent(std::size_t subgroup, std::int64_t generation,
                               std::span<std::byte> extent) {
    std::int64_t offset = 0;
    if (places_) {
        const std::size_t place = places_->take_any(subgroup, generation);
        offset = layout_.place_offset(place);
        if (place >= layout_.places()) {
            volume_.allocate(offset, layout_.most_extent_bytes());
        }
    } else {
        offset = layout_.extent_offset(subgroup, generation);
    }
    seal(extent, subgroup, generation);
    volume_.write(extent, offset, store::Speed::full).wait();
    finish(subgroup, generation);
}

void StateVolume::keep_update(std::int64_t generation, const PayloadMemory& payloads,
                              const StepScalars& scalars, const GroupMap& groups) {
    log_->put(header_of_log(generation), payloads, scalars, groups, range());
}

}  // namespace nearstep::csd
