// The thread that paces shaped transfers. Used by volumes, through NodeLinks.
#include "shaping/pacer.hpp"

#include <algorithm>

namespace nearstep::shaping {

namespace {

// A new transfer is noticed within this time.
constexpr Time kLongestSleep = 200'000;

}  // namespace

Pacer::~Pacer() {
    {
        const std::lock_guard lock(mutex_);
        is_closing_ = true;
    }
    changed_.notify_one();
    thread_.join();
}

Ticket Pacer::cross(const Path& path, std::size_t bytes, Time ready) {
    if (path.empty()) {
        return {};
    }
    const std::lock_guard lock(mutex_);
    const bool is_first = std::ranges::none_of(
        transfers_, [&](const Transfer& transfer) { return transfer.path == &path; });
    transfers_.push_back({.path = &path, .bytes = bytes, .ready = ready});
    if (is_first) {
        begin_next(&path, ready);
    }
    changed_.notify_one();
    return transfers_.back().crossed.ticket();
}

void Pacer::begin_next(const Path* path, Time ready) {
    const auto next = std::ranges::find(transfers_, path, &Transfer::path);
    if (next != transfers_.end()) {
        next->crossing.emplace(*path, std::max(next->ready, ready), next->bytes);
    }
}

void Pacer::run() {
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [this] { return is_closing_ || !transfers_.empty(); });
        if (transfers_.empty()) {
            return;
        }
        std::list<Transfer> over;
        move(over);
        const Time due = transfers_.empty() ? 0 : next_due();
        lock.unlock();
        for (const Transfer& transfer : over) {
            transfer.crossed.complete();
        }
        clock_.sleep_until(std::min(due, now() + kLongestSleep));
        lock.lock();
    }
}

// Moves all transfers on, and those that have crossed to `over`.
void Pacer::move(std::list<Transfer>& over) {
    for (auto transfer = transfers_.begin(); transfer != transfers_.end();) {
        const auto here = transfer++;
        if (here->crossing && here->crossing->is_over(now())) {
            over.splice(over.end(), transfers_, here);
            begin_next(over.back().path, over.back().crossing->due());
            transfer = transfers_.begin();  // the next of the path may be over, too
        }
    }
}

Time Pacer::next_due() const {
    Time due = transfers_.front().crossing->due();
    for (const Transfer& transfer : transfers_) {
        if (transfer.crossing) {
            due = std::min(due, transfer.crossing->due());
        }
    }
    return due;
}

}  // namespace nearstep::shaping
