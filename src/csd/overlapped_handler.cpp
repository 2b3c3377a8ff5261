#include "base/error.hpp"
#include "csd/handler_shell.hpp"

#include <deque>
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

    void run(const UpdateOrder& order) override;
    void read_ahead(const UpdateOrder& order, std::deque<Begun>& begun, std::size_t& count,
                    Ring& ring);
    std::size_t slot_count() { return static_cast<std::size_t>(device().slots()); }
};

OverlappedHandler::OverlappedHandler(Device& device) : HandlerShell(device) {
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

// Starts reads, and waits only if no subgroup is ready to update. One slot stays free for a write.
// `count` is the number of subgroups begun so far.
void OverlappedHandler::read_ahead(const UpdateOrder& order, std::deque<Begun>& begun,
                                   std::size_t& count, Ring& ring) {
    while (begun.size() < slot_count() - 1) {
        const std::size_t slot = count % slot_count();
        if (!begun.empty() && !ring[slot].is_complete()) {
            return;
        }
        const auto next = take(begun.empty() ? Patience::waits : Patience::looks);
        if (!next) {
            return;
        }
        ++count;
        ring[slot].wait();
        ring[slot] = device().read(static_cast<int>(slot), *next, order.from);
        begun.push_back({*next, static_cast<int>(slot)});
    }
}

void OverlappedHandler::run(const UpdateOrder& order) {
    Ring ring(slot_count());
    std::deque<Begun> begun;
    std::size_t count = 0;
    while (true) {
        read_ahead(order, begun, count, ring);
        if (begun.empty()) {
            break;
        }
        const auto [subgroup, slot] = begun.front();
        begun.pop_front();
        Ticket& ticket = ring[static_cast<std::size_t>(slot)];
        ticket.wait();
        device().update(slot, subgroup, order.scalars, order.landing);
        // New parameters leave while this subgroup is written and the next one is updated.
        Ticket delivery = device().deliver(slot, subgroup, order.landing,
                                           [this, of = subgroup] { note_delivered(of); });
        ticket = device().write(slot, subgroup, order.from + 1);
        ticket.add(std::move(delivery));
    }
    for (Ticket& ticket : ring) {
        ticket.wait();
    }
}

}  // namespace

std::unique_ptr<TransferHandler> make_overlapped_handler(Device& device) {
    return std::make_unique<OverlappedHandler>(device);
}

}  // namespace nearstep::csd
