// When transfers over a link end. Used by Pacer, devices and the exchanges between ranks.
#include "shaping/link.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <cmath>

namespace nearstep::shaping {

Link::Link(double bytes_per_s, std::atomic<Time>& free_at)
    : ns_per_byte_(1e9 / bytes_per_s), free_at_(&free_at) {
    expects(bytes_per_s > 0, "a link has a rate");
}

Time Link::take(Time ready, std::size_t bytes) {
    const auto duration = static_cast<Time>(std::ceil(static_cast<double>(bytes) * ns_per_byte_));
    Time free_at = free_at_->load(std::memory_order_relaxed);
    Time over = 0;
    do {
        over = std::max(ready, free_at) + duration;
    } while (!free_at_->compare_exchange_weak(free_at, over, std::memory_order_relaxed));
    return over;
}

Crossing::Crossing(const Path& path, Time ready, std::size_t bytes)
    : path_(path), due_(ready), left_(bytes) {
    take_chunk();
}

// The chunk enters all links at once and ends when the slowest has moved it.
void Crossing::take_chunk() {
    const std::size_t bytes = std::min(left_, kChunkBytes);
    const Time ready = due_;
    for (Link* link : path_) {
        due_ = std::max(due_, link->take(ready, bytes));
    }
    left_ -= bytes;
}

bool Crossing::is_over(Time now) {
    while (due_ <= now && left_ > 0) {
        take_chunk();
    }
    return due_ <= now && left_ == 0;
}

void TransferQueue::add(std::size_t bytes) {
    const Time ready = clock_.now();
    for (Link* link : path_) {
        over_ = std::max(over_, link->take(ready, bytes));
    }
}

Time cross(const Path& path, Time ready, std::size_t bytes, const Clock& clock) {
    Crossing crossing(path, ready, bytes);
    while (!crossing.is_over(clock.now())) {
        clock.sleep_until(crossing.due());
    }
    return crossing.due();
}

}  // namespace nearstep::shaping
