// The order of a device's stages. Used by the step pipeline, and by trials and benchmarks of
// devices.
#include "csd/transfer_handler.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <utility>

namespace nearstep::csd {

using trace::Lane;
using trace::Timeline;

TransferHandler::TransferHandler(HandlerKind kind, Device& device)
    : kind_(kind),
      device_(device),
      kept_(static_cast<std::size_t>(device.kept_slots())),
      of_ahead_(static_cast<std::size_t>(device.ahead_slots())),
      shared_(static_cast<std::size_t>(device.slots()) - kept_ - of_ahead_),
      at_once_(static_cast<std::size_t>(device.reading_slots())),
      subgroups_(device.subgroups().size()),
      reads_(no_work()) {
    if (kind == HandlerKind::naive) {
        return;
    }
    expects(device.slots() >= 3,
            "an overlapped handler has three slots: one to read, one to update, one to write");
    for (int slot = 0; slot < device.slots(); ++slot) {
        device.allocate_slot(slot);
    }
}

TransferHandler::~TransferHandler() {
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
    for (int slot = 0; kind_ == HandlerKind::overlapped && slot < device_.slots(); ++slot) {
        device_.release_slot(slot);
    }
}

// One slot for any stays free for a write.
std::size_t TransferHandler::most_ahead(ReadAhead order) const {
    if (kind_ == HandlerKind::naive) {
        return 0;
    }
    const std::size_t others = of_ahead_ + at_once_;
    if (subgroups_ - kept_ < others) {
        return subgroups_;
    }
    return std::min(subgroups_, (order == ReadAhead::from_first ? kept_ : 0) + others - 1);
}

void TransferHandler::read_ahead(std::int64_t from, ReadAhead order) {
    expects(!ahead_, "state that was read ahead is used or dropped before more is read");
    const std::size_t count = most_ahead(order);
    if (count == 0) {
        return;
    }
    ahead_ = Ahead{from, order, count};
    reading_ = thread_.submit([this, ahead = *ahead_] {
        for (std::size_t i = 0; i < ahead.count; ++i) {
            const std::size_t subgroup =
                ahead.order == ReadAhead::from_first ? i : subgroups_ - 1 - i;
            start_read(subgroup, slot_ahead(subgroup, reads_), ahead.from, reads_);
        }
    });
}

void TransferHandler::drop_read_ahead() {
    reading_ = Ticket();
    reads_ = no_work();  // tickets wait
    ahead_ = std::nullopt;
}

void TransferHandler::begin(const StepScalars& scalars, std::int64_t from,
                            std::span<std::byte> destination) {
    {
        const std::lock_guard lock(mutex_);
        low_ = 0;
        high_ = subgroups_;
        if (const auto ahead = std::exchange(ahead_, std::nullopt)) {
            expects(ahead->from == from, "the update begins with what was read ahead");
            if (ahead->order == ReadAhead::from_first) {
                low_ = ahead->count;
            } else {
                high_ = subgroups_ - ahead->count;
            }
        }
        released_ = subgroups_;
        is_dropping_ = false;
        is_delivered_.assign(subgroups_, false);
        error_ = nullptr;
    }
    running_ = thread_.submit([this, order = StageOrder{scalars, from, destination}] {
        try {
            reading_.wait();
            kind_ == HandlerKind::naive ? run_naively(order) : run_overlapped(order);
        } catch (...) {
            // Kept for all callers that wait, not just the first.
            const std::lock_guard lock(mutex_);
            error_ = std::current_exception();
            changed_.notify_all();
        }
    });
}

void TransferHandler::release(std::size_t first) {
    const std::lock_guard lock(mutex_);
    expects(first <= released_, "a subgroup that was released stays released");
    released_ = first;
    changed_.notify_all();
}

void TransferHandler::cancel() {
    const std::lock_guard lock(mutex_);
    high_ = low_;
    is_dropping_ = true;
    changed_.notify_all();
}

// The next subgroup to begin. nullopt: none is left or, with `looks`, none is released yet.
std::optional<std::size_t> TransferHandler::take(WaitKind patience) {
    std::unique_lock lock(mutex_);
    const auto is_decided = [this] { return low_ >= high_ || released_ == 0 || released_ < high_; };
    if (patience == WaitKind::waits) {
        changed_.wait(lock, is_decided);
    }
    if (low_ >= high_ || !is_decided()) {
        return std::nullopt;
    }
    return released_ == 0 ? low_++ : --high_;
}

// Waits until the subgroup is released. False: it will not be.
bool TransferHandler::await_release(std::size_t subgroup) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, subgroup] { return released_ <= subgroup || is_dropping_; });
    return released_ <= subgroup;
}

void TransferHandler::note_delivered(std::size_t subgroup) {
    const std::lock_guard lock(mutex_);
    is_delivered_[subgroup] = true;
    changed_.notify_all();
}

void TransferHandler::rethrow_error(const std::unique_lock<std::mutex>& lock) {
    expects(lock.owns_lock(), "the error is read under the lock");
    if (error_) {
        std::rethrow_exception(error_);
    }
}

bool TransferHandler::has_parameters(std::size_t subgroup) {
    const std::unique_lock lock(mutex_);
    rethrow_error(lock);
    return is_delivered_.at(subgroup);
}

void TransferHandler::finish() {
    running_.wait();
    const std::unique_lock lock(mutex_);
    rethrow_error(lock);
}

// The span begins at the request of the stage, or at the end of the last one in its lane if that is
// later.
Ticket TransferHandler::recorded(Ticket ticket, Lane lane, const char* name, std::size_t subgroup) {
    Timeline* timeline = device_.tracing().timeline;
    if (timeline == nullptr) {
        return ticket;
    }
    return ticket.then([this, timeline, lane, name, subgroup, asked = Timeline::Clock::now()] {
        const std::lock_guard lock(recording_);
        const Timeline::Clock::time_point now = Timeline::Clock::now();
        Timeline::Clock::time_point& until = recorded_until_[lane];
        timeline->add(lane, name, subject(subgroup), std::max(asked, until), now);
        until = now;
    });
}

Ticket TransferHandler::read(int slot, std::size_t subgroup, std::int64_t from) {
    return recorded(device_.read(slot, subgroup, from), Lane::device_read, "read", subgroup);
}

void TransferHandler::update(int slot, std::size_t subgroup, const StageOrder& order) {
    const trace::Span span(device_.tracing().timeline, Lane::engine, "update", subject(subgroup));
    device_.update(slot, subgroup, order.scalars, order.destination);
}

Ticket TransferHandler::deliver(int slot, std::size_t subgroup, const StageOrder& order) {
    return recorded(device_.deliver(slot, subgroup, order.destination,
                                    [this, subgroup] { note_delivered(subgroup); }),
                    Lane::copy, "deliver", subgroup);
}

Ticket TransferHandler::write(int slot, std::size_t subgroup, const StageOrder& order) {
    return recorded(device_.write(slot, subgroup, order.from + 1), Lane::device_write, "write",
                    subgroup);
}

void TransferHandler::run_naively(const StageOrder& order) {
    while (const auto subgroup = take(WaitKind::waits)) {
        device_.allocate_slot(0);
        try {
            read(0, *subgroup, order.from).wait();
            update(0, *subgroup, order);
            deliver(0, *subgroup, order).wait();
            write(0, *subgroup, order).wait();
        } catch (...) {
            device_.release_slot(0);
            throw;
        }
        device_.release_slot(0);
    }
}

TransferHandler::Work TransferHandler::no_work() const {
    Work work;
    work.tickets.resize(kept_ + of_ahead_ + shared_);
    return work;
}

std::size_t TransferHandler::slot_ahead(std::size_t subgroup, Work& work) const {
    if (subgroup < kept_) {
        return subgroup;
    }
    return work.ahead < of_ahead_ ? kept_ + work.ahead++ : next_slot(work);
}

// The device keeps the first subgroups in slots of their own. The i-th one in a slot for any uses
// slot i modulo their number.
void TransferHandler::start_read(std::size_t subgroup, std::size_t slot, std::int64_t from,
                                 Work& work) {
    if (is_shared(slot)) {
        ++work.count;
        ++work.waiting;
    }
    Ticket& ticket = work.tickets[slot];
    ticket.wait();
    ticket = read(static_cast<int>(slot), subgroup, from);
    work.begun.push_back({subgroup, static_cast<int>(slot)});
}

// Starts reads, and waits only if no subgroup is ready to update.
void TransferHandler::read_more(const StageOrder& order, Work& work) {
    while (kept_ == subgroups_ || work.waiting < at_once_ - 1) {
        if (!work.begun.empty() && !work.tickets[next_slot(work)].is_complete()) {
            return;
        }
        const auto next = take(work.begun.empty() ? WaitKind::waits : WaitKind::looks);
        if (!next) {
            return;
        }
        start_read(*next, *next < kept_ ? *next : next_slot(work), order.from, work);
    }
}

void TransferHandler::run_overlapped(const StageOrder& order) {
    Work work = std::exchange(reads_, no_work());
    while (true) {
        read_more(order, work);
        if (work.begun.empty()) {
            break;
        }
        const auto [subgroup, slot] = work.begun.front();
        work.begun.pop_front();
        work.waiting -= is_shared(static_cast<std::size_t>(slot)) ? 1 : 0;
        Ticket& ticket = work.tickets[static_cast<std::size_t>(slot)];
        ticket.wait();
        if (!await_release(subgroup)) {
            continue;
        }
        update(slot, subgroup, order);
        // New parameters leave while this subgroup is written and the next one is updated.
        Ticket delivery = deliver(slot, subgroup, order);
        ticket = write(slot, subgroup, order);
        ticket.add(std::move(delivery));
    }
    for (Ticket& ticket : work.tickets) {
        ticket.wait();
    }
}

}  // namespace nearstep::csd
