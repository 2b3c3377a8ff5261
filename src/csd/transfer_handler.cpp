#include "csd/transfer_handler.hpp"

#include "base/error.hpp"
#include "csd/handler_shell.hpp"

namespace nearstep::csd {

std::unique_ptr<TransferHandler> TransferHandler::make(HandlerKind kind, Device& device) {
    return kind == HandlerKind::naive ? make_naive_handler(device)
                                      : make_overlapped_handler(device);
}

void HandlerShell::begin(const StepScalars& scalars, std::int64_t from,
                         std::span<std::byte> landing) {
    {
        const std::lock_guard lock(mutex_);
        low_ = 0;
        high_ = device_.subgroups().size();
        released_ = high_;
        is_delivered_.assign(high_, false);
        error_ = nullptr;
    }
    running_ = worker_.submit([this, order = UpdateOrder{scalars, from, landing}] {
        try {
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
    changed_.notify_all();
}

void HandlerShell::stop() {
    {
        const std::lock_guard lock(mutex_);
        if (released_ > 0) {
            high_ = low_;
        }
        changed_.notify_all();
    }
    running_ = Ticket();
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
