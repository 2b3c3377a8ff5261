// What both transfer handlers share: the thread that runs an update, and those who wait for its
// parts.
#pragma once

#include "csd/transfer_handler.hpp"
#include "store/ticket.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>

namespace nearstep::csd {

// What start() was given.
struct UpdateOrder {
    UpdateScalars scalars;
    std::int64_t from = 0;
    std::span<std::byte> landing;
};

// A subclass implements run() and calls stop() in its destructor, before its members go.
class HandlerShell : public TransferHandler {
public:
    explicit HandlerShell(Device& device) : device_(device) {}
    HandlerShell(const HandlerShell&) = delete;
    HandlerShell& operator=(const HandlerShell&) = delete;
    ~HandlerShell() override = default;

    void start(const UpdateScalars& scalars, std::int64_t from,
               std::span<std::byte> landing) override;
    bool has_parameters(std::size_t subgroup) override;
    void wait_parameters(std::size_t subgroup) override;
    void finish() override;

protected:
    // Takes all subgroups through one update, in forward order, on the handler's thread. Calls
    // note_delivered() once for each. May throw: the error reaches whoever waits.
    virtual void run(const UpdateOrder& order) = 0;

    // The parameters of the subgroup have landed. Those behind one that did not are not shown.
    void note_delivered(std::size_t subgroup);

    // Waits for the update under way, if there is one; drops its error.
    void stop() { running_ = Ticket(); }

    Device& device() { return device_; }

private:
    void rethrow_error(const std::unique_lock<std::mutex>& lock);

    Device& device_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::size_t delivered_ = 0;  // subgroups of this update, from the first
    std::exception_ptr error_;
    Ticket running_;
    store::Lane lane_;
};

std::unique_ptr<TransferHandler> make_naive_handler(Device& device);
std::unique_ptr<TransferHandler> make_overlapped_handler(Device& device);

}  // namespace nearstep::csd
