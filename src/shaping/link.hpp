// A link with a limited rate: it tells when a transfer over it ends.
#pragma once

#include "shaping/clock.hpp"

#include <atomic>
#include <cstddef>
#include <vector>

namespace nearstep::shaping {

static_assert(std::atomic<Time>::is_always_lock_free,
              "a link's time is shared by processes, of which one may be killed at any moment");

// One direction. A link moves one chunk of bytes after another and stores only the time when it is
// free again. Any thread of any process that shares that time may take it.
class Link {
public:
    // `free_at` outlives the link and is 0 before its first use.
    Link(double bytes_per_s, std::atomic<Time>& free_at);

    // Reserves the link for bytes that can move from `ready` on, after all earlier reservations.
    // Returns when the last byte has crossed. `ready` may be in the past, so that a thread that
    // woke up late does not leave the link idle.
    Time take(Time ready, std::size_t bytes);

private:
    double ns_per_byte_;
    std::atomic<Time>* free_at_;
};

// The links that a transfer crosses, all at once. Empty: no link limits it. No entry is null.
using Path = std::vector<Link*>;

// Bytes that a transfer reserves at a time, so that concurrent transfers share a link fairly.
constexpr std::size_t kChunkBytes = std::size_t{256} * 1024;

// A transfer over a path, one chunk after another.
class Crossing {
public:
    // The path outlives the crossing.
    Crossing(const Path& path, Time ready, std::size_t bytes);

    // True once all bytes have crossed. Starts the next chunk when the current one has crossed.
    bool is_over(Time now);

    // When the current chunk ends, or when the last one ended.
    Time due() const { return due_; }

private:
    void take_chunk();

    const Path& path_;
    Time due_;
    std::size_t left_;
};

// Small transfers over one path, one after another, with one common wait. Use from one thread.
class TransferQueue {
public:
    // Path and clock outlive the stream.
    TransferQueue(const Path& path, const Clock& clock) : path_(path), clock_(clock) {}

    // Returns at once.
    void add(std::size_t bytes);

    // Blocks until all bytes have crossed.
    void wait() const { clock_.sleep_until(over_); }

private:
    const Path& path_;
    const Clock& clock_;
    Time over_ = 0;
};

// Blocks until bytes that were ready at `ready` have crossed. Returns the time when they had.
Time cross(const Path& path, Time ready, std::size_t bytes, const Clock& clock);

}  // namespace nearstep::shaping
