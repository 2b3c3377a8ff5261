// Which place of a device's storage holds which version of a subgroup, where the subgroups share a
// few spare places instead of having two each.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

namespace nearstep::csd {

// A version is a subgroup's state of one generation. Any thread may call.
class StatePlaces {
public:
    // When a newer version makes the place of an older one free: once it is stored, or only with
    // the next accept(), because until then it may not survive a power cut.
    enum class Frees { when_stored, when_accepted };

    // Places from `lent` on are used only where no other is free, and not by take().
    StatePlaces(std::size_t subgroups, std::size_t places, std::size_t lent, Frees frees);

    // The storage holds no version.
    void clear();
    // The storage was found to hold this version.
    void note(std::size_t subgroup, std::int64_t generation, std::size_t place);

    std::optional<std::size_t> find(std::size_t subgroup, std::int64_t generation) const;
    // Generations of the subgroup's versions up to this one, the newest first.
    std::vector<std::int64_t> versions(std::size_t subgroup, std::int64_t until) const;

    // Returns the place where this version is written next: its own, or a free one. Waits until one
    // is free. Rethrows what fail() was given.
    std::size_t take(std::size_t subgroup, std::int64_t generation);
    // Does the same, and takes a place that is lent rather than wait.
    std::size_t take_any(std::size_t subgroup, std::int64_t generation);
    // Returns the place of the subgroup's newest version, which this version replaces there, or a
    // free one if there is none. For storage that nobody returns to.
    std::size_t replace(std::size_t subgroup, std::int64_t generation);
    // The version is stored.
    void finish(std::size_t subgroup, std::int64_t generation);
    // Frees what the subgroup holds that is older than its newest stored version up to this
    // generation.
    void forget_older(std::int64_t generation, std::size_t subgroup);
    // A write failed, so that its place is never free.
    void fail(std::exception_ptr error);

    // The run goes on from this generation: of each subgroup the newest stored version up to it
    // stays, and all older ones are free. Returns the places of newer versions, which were given up
    // and must not be found again.
    std::vector<std::size_t> accept(std::int64_t generation);

    // A version in a place that is lent, and the free place to which it was moved; none is left if
    // nullopt. Only after accept() and while nothing is written.
    struct Move {
        std::size_t subgroup = 0;
        std::int64_t generation = 0;
        std::size_t from = 0;
        std::size_t to = 0;
    };
    std::optional<Move> take_back();

private:
    struct Version {
        std::int64_t generation = 0;
        std::size_t place = 0;
        bool is_stored = false;  // false: a place was taken for it
    };

    const Version* version(std::size_t subgroup, std::int64_t generation) const;
    template <typename Goes>
    void free_if(std::size_t subgroup, const Goes& goes);
    void drop_older(std::size_t subgroup, std::int64_t generation);

    const std::size_t places_;
    const std::size_t lent_;
    const Frees frees_;
    mutable std::mutex lock_;
    std::condition_variable is_free_;
    std::vector<std::vector<Version>> of_subgroup_;
    std::set<std::size_t> free_;
    std::int64_t accepted_ = 0;
    std::exception_ptr error_;
};

}  // namespace nearstep::csd
