// Moves the subgroups of one device through read, update, deliver and write.
#pragma once

#include "base/executor.hpp"
#include "csd/device.hpp"
#include "trace/timeline.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace nearstep::csd {

// naive: allocate, read, update, write and free, one subgroup after another (the paper's SU).
// overlapped: while a subgroup is updated, later ones are read and the previous one is written, in
// slots allocated once. Parameters are delivered before state is written (the paper's SU+O).
enum class HandlerKind { naive, overlapped };

// The subgroups that are read ahead: from the first, or from the last.
enum class ReadAhead { from_first, from_last };

// Owns a thread. begin() and finish() enclose one update. One thread calls, except finish():
// another thread may call that once no other calls follow. The device's Tracing says where the
// stages are recorded.
class TransferHandler {
public:
    // The device outlives the handler. overlapped requires a device with at least 3 slots.
    TransferHandler(HandlerKind kind, Device& device);
    TransferHandler(const TransferHandler&) = delete;
    TransferHandler& operator=(const TransferHandler&) = delete;
    // Waits for the current update, if any, but drops subgroups not yet released. Ignores its
    // error.
    ~TransferHandler();

    // Starts to read the state of generation `from` into all slots but one that the device does not
    // keep, before the gradients are known. The next begin() takes it up and updates these
    // subgroups first, once they are released. A naive handler does nothing. Not during an update.
    void read_ahead(std::int64_t from, ReadAhead order);

    // Drops what was read ahead, because no update follows. Ignores errors of the reads.
    void drop_read_ahead();

    // Starts the update of all subgroups from generation `from` to `from` + 1, each once it is
    // released. Returns at once. `destination` is host memory, filled by subgroup as
    // Device::deliver says.
    void begin(const StepScalars& scalars, std::int64_t from, std::span<std::byte> destination);

    // The gradients of subgroups from `first` on are ready. `first` never increases during an
    // update. Until all are released, the highest one goes next, because the backward pass yields
    // the last gradients first. The rest then goes in forward order.
    void release(std::size_t first);

    // Begins no more subgroups; finish() waits for those that began.
    void cancel();

    // Releases all subgroups, in forward order.
    void start(const StepScalars& scalars, std::int64_t from, std::span<std::byte> destination) {
        begin(scalars, from, destination);
        release(0);
    }

    // True once the subgroup's new parameters have been delivered. Rethrows an error of the update.
    bool has_parameters(std::size_t subgroup);

    // Blocks until all state is written; rethrows an error of the update. Every subgroup must be
    // released, or the rest cancelled, before.
    void finish();

private:
    // The arguments of begin().
    struct StageOrder {
        StepScalars scalars;
        std::int64_t from = 0;
        std::span<std::byte> destination;
    };

    struct Ahead {
        std::int64_t from = 0;
        ReadAhead order = ReadAhead::from_first;
        std::size_t count = 0;
    };

    // A subgroup whose read has started.
    struct Begun {
        std::size_t subgroup = 0;
        int slot = 0;
    };

    // The work that an overlapped handler has under way.
    struct Work {
        std::vector<Ticket>
            tickets;  // the last operation of each slot: read, or write and delivery
        std::deque<Begun> begun;
        std::size_t ahead = 0;    // slots used so far of those for what is read ahead
        std::size_t count = 0;    // subgroups begun so far in slots for any
        std::size_t waiting = 0;  // of these, in `begun`
    };

    enum class WaitKind { waits, looks };
    std::optional<std::size_t> take(WaitKind patience);
    bool await_release(std::size_t subgroup);
    void note_delivered(std::size_t subgroup);
    void rethrow_error(const std::unique_lock<std::mutex>& lock);
    std::size_t most_ahead(ReadAhead order) const;

    // The stages of a device, recorded.
    Ticket read(int slot, std::size_t subgroup, std::int64_t from);
    void update(int slot, std::size_t subgroup, const StageOrder& order);
    Ticket deliver(int slot, std::size_t subgroup, const StageOrder& order);
    Ticket write(int slot, std::size_t subgroup, const StageOrder& order);
    Ticket recorded(Ticket ticket, trace::Lane lane, const char* name, std::size_t subgroup);
    trace::Subject subject(std::size_t subgroup) const {
        return {.kind = "subgroup", .number = subgroup, .device = device_.tracing().number};
    }

    Work no_work() const;
    std::size_t slot_ahead(std::size_t subgroup, Work& work) const;
    void start_read(std::size_t subgroup, std::size_t slot, std::int64_t from, Work& work);
    void read_more(const StageOrder& order, Work& work);
    bool is_shared(std::size_t slot) const { return slot >= kept_ + of_ahead_; }
    std::size_t next_slot(const Work& work) const {
        return kept_ + of_ahead_ + work.count % shared_;
    }
    void run_overlapped(const StageOrder& order);
    void run_naively(const StageOrder& order);

    const HandlerKind kind_;
    Device& device_;
    const std::size_t kept_;      // slots for one subgroup each
    const std::size_t of_ahead_;  // slots for what is read ahead
    const std::size_t shared_;    // slots for any
    const std::size_t at_once_;   // of these, see Device::reading_slots()
    const std::size_t subgroups_;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<bool> is_delivered_;  // of this update, by subgroup
    // Subgroups [low_, high_) have not begun. Subgroups from released_ on may begin.
    std::size_t low_ = 0;
    std::size_t high_ = 0;
    std::size_t released_ = 0;
    bool is_dropping_ = false;  // what is not released yet
    std::exception_ptr error_;

    std::optional<Ahead> ahead_;
    Work reads_;  // ahead; used by the handler's thread, or while it has nothing to do
    std::mutex recording_;
    std::map<trace::Lane, trace::Timeline::Clock::time_point> recorded_until_;
    Ticket reading_;  // starts the reads ahead
    Ticket running_;
    Executor thread_{1};  // last, so that it ends before what it uses
};

}  // namespace nearstep::csd
