// A link that is held to a rate: whoever moves bytes over it learns when it will have moved them.
#pragma once

#include "link/clock.hpp"

#include <atomic>
#include <cstddef>
#include <vector>

namespace nearstep::link {

static_assert(std::atomic<Time>::is_always_lock_free,
              "a link's time is shared by processes, of which one may be killed at any moment");

// One direction. The link is busy with one chunk of bytes after another, and all that it remembers
// is when it is free again. Any thread, of any process that shares that time, may take it.
class Link {
public:
    // `free_at` outlives the link and is 0 before its first use.
    Link(double bytes_per_s, std::atomic<Time>& free_at);

    // Takes the link for bytes that are there to be moved from `ready` on; returns when the last
    // one is over. Behind everyone who took it before. `ready` may be past: a link does not idle
    // because a thread woke up late.
    Time take(Time ready, std::size_t bytes);

private:
    double ns_per_byte_;
    std::atomic<Time>* free_at_;
};

// The links that a transfer crosses, all at once; empty: no link holds it up. None is null.
using Path = std::vector<Link*>;

// What a transfer takes of its links at a time, so that transfers that meet on one share it fairly.
constexpr std::size_t kChunkBytes = std::size_t{256} * 1024;

// A transfer on its way over a path, one chunk after another.
class Crossing {
public:
    // The path outlives the crossing.
    Crossing(const Path& path, Time ready, std::size_t bytes);

    // True once all bytes are over. Asks the links for the next chunk when one is over.
    bool is_over(Time now);

    // When the chunk under way is over, or the last one was.
    Time due() const { return due_; }

private:
    void take_chunk();

    const Path& path_;
    Time due_;
    std::size_t left_;
};

// Small transfers over one path, one behind another, that nobody waits for singly. One thread.
class Stream {
public:
    // Path and clock outlive the stream.
    Stream(const Path& path, const Clock& clock) : path_(path), clock_(clock) {}

    // Returns at once.
    void add(std::size_t bytes);

    // Blocks until all bytes are over.
    void wait() const { clock_.sleep_until(over_); }

private:
    const Path& path_;
    const Clock& clock_;
    Time over_ = 0;
};

// Blocks until bytes that were there from `ready` on have crossed; returns when they had.
Time cross(const Path& path, Time ready, std::size_t bytes, const Clock& clock);

}  // namespace nearstep::link
