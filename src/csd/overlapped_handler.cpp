#include "base/error.hpp"
#include "csd/handler_shell.hpp"

#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

namespace nearstep::csd {

namespace {

// The paper's SU+O: the i-th subgroup to begin uses slot i modulo the number of slots. While it is
// updated, later ones are read and the previous one is written.
class OverlappedHandler : public HandlerShell {
public:
    explicit OverlappedHandler(Device& device);
    OverlappedHandler(const OverlappedHandler&) = delete;
    OverlappedHandler& operator=(const OverlappedHandler&) = delete;
    ~OverlappedHandler() override;

private:
    // The last operation of each slot: its read, or its write and delivery.
    using Ring = std::vector<Ticket>;

    // A subgroup whose read has started.
    struct Begun {
        std::size_t subgroup = 0;
        int slot = 0;
    };

    struct Work {
        Ring ring;
        std::deque<Begun> begun;
        std::size_t count = 0;  // subgroups begun so far
    };

    void run(const UpdateOrder& order) override;
    std::size_t most_ahead() override { return slot_count() - 1; }
    void start_reads(std::span<const std::size_t> subgroups, std::int64_t from) override;
    void drop_reads() override;
    void start_read(std::size_t subgroup, std::int64_t from, Work& work);
    void read_more(const UpdateOrder& order, Work& work);
    std::size_t slot_count() { return static_cast<std::size_t>(device().slots()); }

    Work reads_;  // used by the handler's thread, or while it has nothing to do
};

OverlappedHandler::OverlappedHandler(Device& device) : HandlerShell(device) {
    expects(device.slots() >= 3,
            "an overlapped handler has three slots: one to read, one to update, one to write");
    for (int slot = 0; slot < device.slots(); ++slot) {
        device.allocate_slot(slot);
    }
    reads_.ring.resize(slot_count());
}

OverlappedHandler::~OverlappedHandler() {
    stop();
    for (int slot = 0; slot < device().slots(); ++slot) {
        device().release_slot(slot);
    }
}

void OverlappedHandler::start_read(std::size_t subgroup, std::int64_t from, Work& work) {
    const std::size_t slot = work.count++ % slot_count();
    Ticket& ticket = work.ring[slot];
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
    reads_ = Work();  // tickets wait
    reads_.ring.resize(slot_count());
}

// Starts reads, and waits only if no subgroup is ready to update. One slot stays free for a write.
void OverlappedHandler::read_more(const UpdateOrder& order, Work& work) {
    while (work.begun.size() < slot_count() - 1) {
        const std::size_t slot = work.count % slot_count();
        if (!work.begun.empty() && !work.ring[slot].is_complete()) {
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
    Work work = std::exchange(reads_, Work());
    reads_.ring.resize(slot_count());
    while (true) {
        read_more(order, work);
        if (work.begun.empty()) {
            break;
        }
        const auto [subgroup, slot] = work.begun.front();
        work.begun.pop_front();
        Ticket& ticket = work.ring[static_cast<std::size_t>(slot)];
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
    for (Ticket& ticket : work.ring) {
        ticket.wait();
    }
}

}  // namespace

std::unique_ptr<TransferHandler> make_overlapped_handler(Device& device) {
    return std::make_unique<OverlappedHandler>(device);
}

}  // namespace nearstep::csd
