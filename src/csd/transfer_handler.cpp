#include "csd/transfer_handler.hpp"

#include "base/error.hpp"
#include "csd/handler_shell.hpp"

#include <algorithm>
#include <utility>

namespace nearstep::csd {

std::unique_ptr<TransferHandler> TransferHandler::make(HandlerKind kind, Device& device) {
    return kind == HandlerKind::naive ? make_naive_handler(device)
                                      : make_overlapped_handler(device);
}

void HandlerShell::read_ahead(std::int64_t from, ReadAhead order) {
    expects(!ahead_, "what was read ahead is used or dropped before more is");
    const std::size_t all = device_.subgroups().size();
    const std::size_t count = std::min(most_ahead(order), all);
    if (count == 0) {
        return;
    }
    ahead_ = Ahead{from, order, count};
    std::vector<std::size_t> subgroups(count);
    for (std::size_t i = 0; i < count; ++i) {
        subgroups[i] = order == ReadAhead::from_first ? i : all - 1 - i;
    }
    reading_ = worker_.submit(
        [this, subgroups = std::move(subgroups), from] { start_reads(subgroups, from); });
}

void HandlerShell::drop_read_ahead() {
    reading_ = Ticket();
    drop_reads();
    ahead_ = std::nullopt;
}

void HandlerShell::begin(const StepScalars& scalars, std::int64_t from,
                         std::span<std::byte> landing) {
    {
        const std::lock_guard lock(mutex_);
        const std::size_t all = device_.subgroups().size();
        low_ = 0;
        high_ = all;
        if (const auto ahead = std::exchange(ahead_, std::nullopt)) {
            expects(ahead->from == from, "the update begins with what was read ahead");
            (ahead->order == ReadAhead::from_first ? low_ : high_) =
                ahead->order == ReadAhead::from_first ? ahead->count : all - ahead->count;
        }
        released_ = all;
        is_dropping_ = false;
        is_delivered_.assign(all, false);
        error_ = nullptr;
    }
    running_ = worker_.submit([this, order = UpdateOrder{scalars, from, landing}] {
        try {
            reading_.wait();
            run(order);
        } catch (...) {
            // Kept for all callers that wait, not just the first.
            const std::lock_guard lock(mutex_);
            error_ = std::current_exception();
            changed_.notify_all();
        }
    });
}

void HandlerShell::release(std::size_t first) {
    const std::lock_guard lock(mutex_);
    expects(first <= released_, "what was released stays so");
    released_ = first;
    changed_.notify_all();
}

void HandlerShell::cancel() {
    const std::lock_guard lock(mutex_);
    high_ = low_;
    is_dropping_ = true;
    changed_.notify_all();
}

void HandlerShell::stop() {
    {
        const std::lock_guard lock(mutex_);
        if (released_ > 0) {
            high_ = low_;
            is_dropping_ = true;
        }
        changed_.notify_all();
    }
    running_ = Ticket();
    drop_read_ahead();
}

std::optional<std::size_t> HandlerShell::take(Patience patience) {
    std::unique_lock lock(mutex_);
    const auto is_decided = [this] { return low_ >= high_ || released_ == 0 || released_ < high_; };
    if (patience == Patience::waits) {
        changed_.wait(lock, is_decided);
    }
    if (low_ >= high_ || !is_decided()) {
        return std::nullopt;
    }
    return released_ == 0 ? low_++ : --high_;
}

bool HandlerShell::await_release(std::size_t subgroup) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, subgroup] { return released_ <= subgroup || is_dropping_; });
    return released_ <= subgroup;
}

void HandlerShell::note_delivered(std::size_t subgroup) {
    const std::lock_guard lock(mutex_);
    is_delivered_[subgroup] = true;
    changed_.notify_all();
}

void HandlerShell::rethrow_error(const std::unique_lock<std::mutex>& lock) {
    expects(lock.owns_lock(), "the error is read under the lock");
    if (error_) {
        std::rethrow_exception(error_);
    }
}

bool HandlerShell::has_parameters(std::size_t subgroup) {
    const std::unique_lock lock(mutex_);
    rethrow_error(lock);
    return is_delivered_.at(subgroup);
}

void HandlerShell::wait_parameters(std::size_t subgroup) {
    expects(subgroup < device_.subgroups().size(), "the subgroup is one of the device's");
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, subgroup] { return is_delivered_.at(subgroup) || error_; });
    rethrow_error(lock);
}

void HandlerShell::finish() {
    running_.wait();
    const std::unique_lock lock(mutex_);
    rethrow_error(lock);
}

}  // namespace nearstep::csd
