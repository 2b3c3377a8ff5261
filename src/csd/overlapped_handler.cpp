#include "base/error.hpp"
#include "csd/handler_shell.hpp"

#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

namespace nearstep::csd {

namespace {

// The paper's SU+O: while a subgroup is updated, later ones are read and the previous one is
// written. The device keeps the first subgroups in slots of their own; the i-th other one to begin
// uses slot i modulo the number of the other slots.
class OverlappedHandler : public HandlerShell {
public:
    explicit OverlappedHandler(Device& device);
    OverlappedHandler(const OverlappedHandler&) = delete;
    OverlappedHandler& operator=(const OverlappedHandler&) = delete;
    ~OverlappedHandler() override;

private:
    // The last operation of each slot: its read, or its write and delivery.
    using Tickets = std::vector<Ticket>;

    // A subgroup whose read has started.
    struct Begun {
        std::size_t subgroup = 0;
        int slot = 0;
    };

    struct Work {
        Tickets tickets;
        std::deque<Begun> begun;
        std::size_t count = 0;    // subgroups begun so far in slots for any
        std::size_t waiting = 0;  // of these, in `begun`
    };

    Work no_work() const {
        Work work;
        work.tickets.resize(kept_ + shared_);
        return work;
    }
    void run(const UpdateOrder& order) override;
    std::size_t most_ahead(ReadAhead order) override;
    void start_reads(std::span<const std::size_t> subgroups, std::int64_t from) override;
    void drop_reads() override;
    void start_read(std::size_t subgroup, std::int64_t from, Work& work);
    void read_more(const UpdateOrder& order, Work& work);
    std::size_t next_slot(const Work& work) const { return kept_ + work.count % shared_; }

    const std::size_t kept_;    // slots for one subgroup each
    const std::size_t shared_;  // slots for any
    const std::size_t subgroups_;
    Work reads_;  // used by the handler's thread, or while it has nothing to do
};

OverlappedHandler::OverlappedHandler(Device& device)
    : HandlerShell(device),
      kept_(static_cast<std::size_t>(device.kept_slots())),
      shared_(static_cast<std::size_t>(device.slots()) - kept_),
      subgroups_(device.subgroups().size()),
      reads_(no_work()) {
    expects(device.slots() >= 3,
            "an overlapped handler has three slots: one to read, one to update, one to write");
    for (int slot = 0; slot < device.slots(); ++slot) {
        device.allocate_slot(slot);
    }
}

OverlappedHandler::~OverlappedHandler() {
    stop();
    for (int slot = 0; slot < device().slots(); ++slot) {
        device().release_slot(slot);
    }
}

// One slot for any stays free for a write.
std::size_t OverlappedHandler::most_ahead(ReadAhead order) {
    const std::size_t others = subgroups_ - kept_;
    if (others < shared_) {
        return subgroups_;
    }
    return (order == ReadAhead::from_first ? kept_ : 0) + shared_ - 1;
}

void OverlappedHandler::start_read(std::size_t subgroup, std::int64_t from, Work& work) {
    const std::size_t slot = subgroup < kept_ ? subgroup : next_slot(work);
    if (subgroup >= kept_) {
        ++work.count;
        ++work.waiting;
    }
    Ticket& ticket = work.tickets[slot];
    ticket.wait();
    ticket = device().read(static_cast<int>(slot), subgroup, from);
    work.begun.push_back({subgroup, static_cast<int>(slot)});
}

void OverlappedHandler::start_reads(std::span<const std::size_t> subgroups, std::int64_t from) {
    for (const std::size_t subgroup : subgroups) {
        start_read(subgroup, from, reads_);
    }
}

void OverlappedHandler::drop_reads() {
    reads_ = no_work();  // tickets wait
}

// Starts reads, and waits only if no subgroup is ready to update.
void OverlappedHandler::read_more(const UpdateOrder& order, Work& work) {
    while (kept_ == subgroups_ || work.waiting < shared_ - 1) {
        if (!work.begun.empty() && !work.tickets[next_slot(work)].is_complete()) {
            return;
        }
        const auto next = take(work.begun.empty() ? Patience::waits : Patience::looks);
        if (!next) {
            return;
        }
        start_read(*next, order.from, work);
    }
}

void OverlappedHandler::run(const UpdateOrder& order) {
    Work work = std::exchange(reads_, no_work());
    while (true) {
        read_more(order, work);
        if (work.begun.empty()) {
            break;
        }
        const auto [subgroup, slot] = work.begun.front();
        work.begun.pop_front();
        work.waiting -= subgroup < kept_ ? 0 : 1;
        Ticket& ticket = work.tickets[static_cast<std::size_t>(slot)];
        ticket.wait();
        if (!await_release(subgroup)) {
            continue;
        }
        device().update(slot, subgroup, order.scalars, order.landing);
        // New parameters leave while this subgroup is written and the next one is updated.
        Ticket delivery = device().deliver(slot, subgroup, order.landing,
                                           [this, of = subgroup] { note_delivered(of); });
        ticket = device().write(slot, subgroup, order.from + 1);
        ticket.add(std::move(delivery));
    }
    for (Ticket& ticket : work.tickets) {
        ticket.wait();
    }
}

}  // namespace

std::unique_ptr<TransferHandler> make_overlapped_handler(Device& device) {
    return std::make_unique<OverlappedHandler>(device);
}

}  // namespace nearstep::csd
