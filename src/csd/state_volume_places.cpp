// The places of a device's state that subgroups share, and the log that repeats an update. The part
// of StateVolume that knows of them.
#include "base/error.hpp"
#include "base/wording.hpp"
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

// Generations up to this one that a place may hold, the newest first.
std::vector<std::int64_t> StateVolume::versions(std::size_t subgroup, std::int64_t until) {
    if (!places_) {
        return {until};
    }
    look_for_places();
    return places_->versions(subgroup, until);
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
void StateVolume::accept(std::int64_t generation) {
    if (!places_) {
        return;
    }
    look_for_places();
    const std::vector<std::size_t> given_up = places_->accept(generation);
    const memory::Buffer zeros(given_up.empty() ? 0 : store::kHeaderBytes);
    for (const std::size_t place : given_up) {
        volume_.write(zeros.span(), layout_.place_offset(place), store::Speed::full).wait();
    }
    move_back();
    make_missing_logs();
    const std::lock_guard lock(looking_);
    updates_.clear();
}

// A run that needs none of its logs may go on with those of another folder.
void StateVolume::make_missing_logs() {
    for (GradientLog& log : logs_) {
        if (settings_.log_bytes > 0 && !log.is_there()) {
            log.reserve(settings_.log_bytes);
        }
    }
}

// Places are lent while a program changes all masters. The header goes last, so that a restart
// finds no half of a version. On a drive the payload is flushed before, since a power cut may keep
// the header alone, and the header is flushed before the lent place is given back.
void StateVolume::move_back() {
    constexpr auto kHeader = static_cast<std::int64_t>(store::kHeaderBytes);
    std::vector<std::pair<StatePlaces::Move, memory::Buffer>> moved;  // with the header
    const auto flush = [&] {
        if (!moved.empty() && has_turns()) {
            volume_.sync().wait();
        }
    };
    memory::Buffer extent;
    while (const auto move = places_->take_back()) {
        if (moved.empty()) {
            extent = memory::Buffer(layout_.most_extent_bytes());
        }
        const auto bytes = extent.span().first(layout_.extent_bytes(move->subgroup));
        volume_.read(bytes, layout_.place_offset(move->from), store::Speed::full).wait();
        volume_
            .write(bytes.subspan(store::kHeaderBytes), layout_.place_offset(move->to) + kHeader,
                   store::Speed::full)
            .wait();
        moved.emplace_back(*move, memory::Buffer(store::kHeaderBytes));
        std::ranges::copy(bytes.first(store::kHeaderBytes), moved.back().second.span().begin());
    }
    flush();
    for (const auto& [move, header] : moved) {
        volume_.write(header.span(), layout_.place_offset(move.to), store::Speed::full).wait();
    }
    flush();
    for (const auto& [move, header] : moved) {
        volume_.free(layout_.place_offset(move.from), layout_.most_extent_bytes());
    }
}

// The update that makes this generation; null if no log has it. accept() may forget it while
// another thread repeats it, as where a step was given up.
std::shared_ptr<const LoggedUpdate> StateVolume::update_to(std::int64_t generation) {
    const std::lock_guard lock(looking_);
    const auto [found, is_new] = updates_.try_emplace(generation);
    if (is_new && !logs_.empty()) {
        try {
            auto update =
                log_of(generation).read(header_of_log(generation), layout_.tiles(), range());
            if (update) {
                found->second = std::make_shared<const LoggedUpdate>(*std::move(update));
            }
        } catch (...) {
            updates_.erase(found);
            throw;
        }
    }
    return found->second;
}

// Returns why the updates between two generations cannot be repeated.
std::optional<std::string> StateVolume::repeat(std::size_t subgroup, std::int64_t from,
                                               std::int64_t to, std::span<std::byte> extent) {
    for (std::int64_t next = from + 1; next <= to; ++next) {
        const std::shared_ptr<const LoggedUpdate> update = update_to(next);
        if (update == nullptr) {
            return logs_.empty()
                       ? text("no place holds its generation ", to)
                       : text("its place holds generation ", from, ", and the log \"",
                              log_of(next).path(), "\" lacks the update to ", next,
                              "; if its logs are in another folder, name that in ", Term::log);
        }
        update->apply(layout_, settings_.subgroups, subgroup, payload_of(extent, subgroup));
    }
    std::int64_t most = most_repeated_;
    while (most < to - from && !most_repeated_.compare_exchange_weak(most, to - from)) {
    }
    if (from < to) {
        const std::lock_guard lock(looking_);
        repeated_[subgroup] = from;
    }
    return std::nullopt;
}

// With several logs each subgroup is stored in its turn.
std::vector<std::size_t> StateVolume::take_repeated(std::int64_t generation) {
    std::vector<std::size_t> subgroups;
    if (!places_ || has_turns()) {
        return subgroups;
    }
    const std::lock_guard lock(looking_);
    const std::map<std::size_t, std::int64_t> repeated = std::exchange(repeated_, {});
    for (std::size_t s = 0; s < layout_.subgroups(); ++s) {
        const auto from = repeated.find(s);
        const bool is_repeated = from != repeated.end() && from->second < generation;
        places_->forget_older(is_repeated ? from->second : generation, s);
        if (is_repeated) {
            subgroups.push_back(s);
        }
    }
    return subgroups;
}

void StateVolume::store_repeated(std::size_t subgroup, std::int64_t generation) {
    memory::Buffer extent(layout_.extent_bytes(subgroup));
    load(subgroup, generation, extent.span());
    store_extent(subgroup, generation, extent.span());
    places_->forget_older(generation, subgroup);
}

// A second call for the same version returns the same place.
std::int64_t StateVolume::place_to_store(std::size_t subgroup, std::int64_t generation) {
    if (!places_) {
        return layout_.extent_offset(subgroup, generation);
    }
    if (has_turns()) {  // the generation before is durable
        places_->forget_older(generation - 1, subgroup);
    }
    const std::size_t place = places_->take_any(subgroup, generation);
    const std::int64_t offset = layout_.place_offset(place);
    if (place >= layout_.places()) {
        volume_.allocate(offset, layout_.most_extent_bytes());
    }
    return offset;
}

void StateVolume::store_extent(std::size_t subgroup, std::int64_t generation,
                               std::span<std::byte> extent) {
    const std::int64_t offset = place_to_store(subgroup, generation);
    seal(extent, subgroup, generation);
    volume_.write(extent, offset, store::Speed::full).wait();
    finish(subgroup, generation);
}

void StateVolume::keep_update(std::int64_t generation, const PayloadMemory& payloads,
                              const StepScalars& scalars, const GroupMap& groups) {
    const std::size_t bytes =
        log_of(generation).put(header_of_log(generation), payloads, scalars, groups, range());
    if (has_turns()) {
        volume_.note_written(bytes);
        traffic_->add(trace::Counter::internal_write, bytes);
    }
}

}  // namespace nearstep::csd
