// Shared by both transfer handlers: the thread that runs an update, and waiting for its parts.
#pragma once

#include "csd/transfer_handler.hpp"
#include "store/ticket.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace nearstep::csd {

// The arguments of begin().
struct UpdateOrder {
    StepScalars scalars;
    std::int64_t from = 0;
    std::span<std::byte> landing;
};

// A subclass implements run() and calls stop() in its destructor, before its members are destroyed.
class HandlerShell : public TransferHandler {
public:
    explicit HandlerShell(Device& device) : device_(device) {}
    HandlerShell(const HandlerShell&) = delete;
    HandlerShell& operator=(const HandlerShell&) = delete;
    ~HandlerShell() override = default;

    void read_ahead(std::int64_t from, ReadAhead order) override;
    void drop_read_ahead() override;
    void begin(const StepScalars& scalars, std::int64_t from,
               std::span<std::byte> landing) override;
    void release(std::size_t first) override;
    void cancel() override;
    bool has_parameters(std::size_t subgroup) override;
    void wait_parameters(std::size_t subgroup) override;
    void finish() override;

protected:
    // Updates every subgroup that take() returns, on the handler's thread, and calls
    // note_delivered() once for each. If it throws, the callers that wait get the error.
    virtual void run(const UpdateOrder& order) = 0;

    // Subgroups that may be read ahead, in this order.
    virtual std::size_t most_ahead(ReadAhead /*order*/) { return 0; }
    // Starts to read these subgroups, on the handler's thread. run() updates them first.
    virtual void start_reads(std::span<const std::size_t> /*subgroups*/, std::int64_t /*from*/) {}
    // Waits for the reads that start_reads() started, ignores their errors and forgets them.
    virtual void drop_reads() {}

    enum class Patience { waits, looks };
    // The next subgroup to begin. nullopt: none is left or, with `looks`, none is released yet.
    std::optional<std::size_t> take(Patience patience);

    // Waits until the subgroup is released. False: it will not be.
    bool await_release(std::size_t subgroup);

    // Records that the subgroup's parameters have landed.
    void note_delivered(std::size_t subgroup);

    // Waits for the current update, if any, but drops subgroups not yet released. Ignores its
    // error.
    void stop();

    Device& device() { return device_; }

private:
    void rethrow_error(const std::unique_lock<std::mutex>& lock);

    Device& device_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<bool> is_delivered_;  // of this update, by subgroup
    // Subgroups [low_, high_) have not begun. Those from released_ on may begin.
    std::size_t low_ = 0;
    std::size_t high_ = 0;
    std::size_t released_ = 0;
    bool is_dropping_ = false;  // what is not released yet
    struct Ahead {
        std::int64_t from = 0;
        ReadAhead order = ReadAhead::from_first;
        std::size_t count = 0;
    };
    std::optional<Ahead> ahead_;
    std::exception_ptr error_;
    Ticket reading_;  // starts the reads ahead
    Ticket running_;
    store::Worker worker_;
};

std::unique_ptr<TransferHandler> make_naive_handler(Device& device);
std::unique_ptr<TransferHandler> make_overlapped_handler(Device& device);

}  // namespace nearstep::csd
