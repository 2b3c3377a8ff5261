// Lends places to versions of subgroups. Used by StateVolume and GpuDevice.
#include "csd/state_places.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <functional>
#include <utility>

namespace nearstep::csd {

StatePlaces::StatePlaces(std::size_t subgroups, std::size_t places, std::size_t lent, Frees frees)
    : places_(places), lent_(lent), frees_(frees), of_subgroup_(subgroups) {
    clear();
}

void StatePlaces::clear() {
    const std::lock_guard lock(lock_);
    for (std::vector<Version>& versions : of_subgroup_) {
        versions.clear();
    }
    for (std::size_t place = 0; place < places_; ++place) {
        free_.insert(free_.end(), place);
    }
    accepted_ = 0;
}

void StatePlaces::note(std::size_t subgroup, std::int64_t generation, std::size_t place) {
    const std::lock_guard lock(lock_);
    if (version(subgroup, generation) == nullptr && free_.erase(place) > 0) {
        of_subgroup_.at(subgroup).push_back({generation, place, true});
    }
}

const StatePlaces::Version* StatePlaces::version(std::size_t subgroup,
                                                 std::int64_t generation) const {
    const std::vector<Version>& versions = of_subgroup_.at(subgroup);
    const auto found = std::ranges::find(versions, generation, &Version::generation);
    return found == versions.end() ? nullptr : &*found;
}

std::optional<std::size_t> StatePlaces::find(std::size_t subgroup, std::int64_t generation) const {
    const std::lock_guard lock(lock_);
    const Version* found = version(subgroup, generation);
    return found == nullptr ? std::nullopt : std::optional(found->place);
}

std::vector<std::int64_t> StatePlaces::versions(std::size_t subgroup, std::int64_t until) const {
    const std::lock_guard lock(lock_);
    std::vector<std::int64_t> generations;
    for (const Version& one : of_subgroup_.at(subgroup)) {
        if (one.generation <= until) {
            generations.push_back(one.generation);
        }
    }
    std::ranges::sort(generations, std::greater());
    return generations;
}

std::size_t StatePlaces::take(std::size_t subgroup, std::int64_t generation) {
    std::unique_lock lock(lock_);
    if (const Version* found = version(subgroup, generation)) {
        return found->place;
    }
    is_free_.wait(lock, [this] { return error_ || (!free_.empty() && *free_.begin() < lent_); });
    if (error_) {
        std::rethrow_exception(error_);
    }
    const std::size_t place = *free_.begin();
    free_.erase(free_.begin());
    of_subgroup_.at(subgroup).push_back({generation, place});
    return place;
}

std::size_t StatePlaces::take_any(std::size_t subgroup, std::int64_t generation) {
    const std::lock_guard lock(lock_);
    if (const Version* found = version(subgroup, generation)) {
        return found->place;
    }
    expects(!free_.empty(), "there are two places for each subgroup");
    const std::size_t place = *free_.begin();
    free_.erase(free_.begin());
    of_subgroup_.at(subgroup).push_back({generation, place});
    return place;
}

std::size_t StatePlaces::replace(std::size_t subgroup, std::int64_t generation) {
    std::unique_lock lock(lock_);
    std::vector<Version>& versions = of_subgroup_.at(subgroup);
    const auto newest = std::ranges::max_element(versions, {}, &Version::generation);
    if (newest != versions.end() && version(subgroup, generation) == nullptr) {
        *newest = {generation, newest->place};
    }
    lock.unlock();
    return take_any(subgroup, generation);
}

template <typename Goes>
void StatePlaces::free_if(std::size_t subgroup, const Goes& goes) {
    const std::size_t gone = std::erase_if(of_subgroup_.at(subgroup), [&](const Version& one) {
        const bool does_go = goes(one);
        if (does_go) {
            free_.insert(one.place);
        }
        return does_go;
    });
    if (gone > 0) {
        is_free_.notify_all();
    }
}

void StatePlaces::drop_older(std::size_t subgroup, std::int64_t generation) {
    std::int64_t newest = -1;
    for (const Version& one : of_subgroup_.at(subgroup)) {
        if (one.is_stored && one.generation <= generation) {
            newest = std::max(newest, one.generation);
        }
    }
    free_if(subgroup, [&](const Version& one) { return one.generation < newest; });
}

void StatePlaces::finish(std::size_t subgroup, std::int64_t generation) {
    const std::lock_guard lock(lock_);
    for (Version& one : of_subgroup_.at(subgroup)) {
        one.is_stored = one.is_stored || one.generation == generation;
    }
    if (frees_ == Frees::when_stored && generation == accepted_) {
        drop_older(subgroup, generation);
    }
}

void StatePlaces::forget_older(std::int64_t generation, std::size_t subgroup) {
    const std::lock_guard lock(lock_);
    drop_older(subgroup, generation);
}

void StatePlaces::fail(std::exception_ptr error) {
    const std::lock_guard lock(lock_);
    error_ = std::move(error);
    is_free_.notify_all();
}

std::vector<std::size_t> StatePlaces::accept(std::int64_t generation) {
    const std::lock_guard lock(lock_);
    accepted_ = generation;
    std::vector<std::size_t> given_up;
    for (std::size_t subgroup = 0; subgroup < of_subgroup_.size(); ++subgroup) {
        drop_older(subgroup, generation);
        free_if(subgroup, [&](const Version& one) {
            if (one.generation > generation) {
                given_up.push_back(one.place);
            }
            return one.generation > generation;
        });
    }
    return given_up;
}

std::optional<StatePlaces::Move> StatePlaces::take_back() {
    const std::lock_guard lock(lock_);
    for (std::size_t subgroup = 0; subgroup < of_subgroup_.size(); ++subgroup) {
        for (Version& one : of_subgroup_[subgroup]) {
            if (one.place >= lent_ && !free_.empty() && *free_.begin() < lent_) {
                const Move move{subgroup, one.generation, one.place, *free_.begin()};
                free_.erase(free_.begin());
                free_.insert(move.from);
                one.place = move.to;
                return move;
            }
        }
    }
    return std::nullopt;
}

}  // namespace nearstep::csd
