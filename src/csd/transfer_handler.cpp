#include "csd/transfer_handler.hpp"

#include "base/error.hpp"
#include "csd/handler_shell.hpp"

namespace nearstep::csd {

std::unique_ptr<TransferHandler> TransferHandler::make(HandlerKind kind, Device& device) {
    return kind == HandlerKind::naive ? make_naive_handler(device)
                                      : make_overlapped_handler(device);
}

void HandlerShell::start(const UpdateScalars& scalars, std::int64_t from,
                         std::span<std::byte> landing) {
    {
        const std::lock_guard lock(mutex_);
        delivered_ = 0;
        error_ = nullptr;
    }
    running_ = lane_.submit([this, order = UpdateOrder{scalars, from, landing}] {
        try {
            run(order);
        } catch (...) {
            // Kept for every caller that asks, not only for the first.
            const std::lock_guard lock(mutex_);
            error_ = std::current_exception();
            changed_.notify_all();
        }
    });
}

void HandlerShell::note_delivered(std::size_t subgroup) {
    const std::lock_guard lock(mutex_);
    delivered_ += subgroup == delivered_ ? 1 : 0;
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
    return subgroup < delivered_;
}

void HandlerShell::wait_parameters(std::size_t subgroup) {
    expects(subgroup < device_.subgroups().size(), "the subgroup is one of the device's");
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, subgroup] { return subgroup < delivered_ || error_; });
    rethrow_error(lock);
}

void HandlerShell::finish() {
    running_.wait();
    const std::unique_lock lock(mutex_);
    rethrow_error(lock);
}

}  // namespace nearstep::csd
