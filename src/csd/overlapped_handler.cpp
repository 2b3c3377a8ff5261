#include "base/error.hpp"
#include "csd/handler_shell.hpp"

#include <utility>
#include <vector>

namespace nearstep::csd {

namespace {

// The paper's SU+O: subgroup i uses slot i modulo the number of slots. While i is updated, i+1 and
// later ones are read and i-1 is written.
class OverlappedHandler : public HandlerShell {
public:
    explicit OverlappedHandler(Device& device);
    OverlappedHandler(const OverlappedHandler&) = delete;
    OverlappedHandler& operator=(const OverlappedHandler&) = delete;
    ~OverlappedHandler() override;

private:
    // A slot's reading, or its writing and delivery, whichever was last.
    using Ring = std::vector<Ticket>;

    void run(const UpdateOrder& order) override;
    void read_ahead(const UpdateOrder& order, std::size_t updating, std::size_t& next_read,
                    Ring& ring);
    std::size_t slot_count() { return static_cast<std::size_t>(device().slots()); }
    int slot_of(std::size_t subgroup) { return static_cast<int>(subgroup % slot_count()); }
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

// Starts the reads up to `updating` + slots - 2; the slot left over is that of the last write.
void OverlappedHandler::read_ahead(const UpdateOrder& order, std::size_t updating,
                                   std::size_t& next_read, Ring& ring) {
    const std::size_t last = updating + slot_count() - 2;
    for (; next_read < device().subgroups().size() && next_read <= last; ++next_read) {
        const int slot = slot_of(next_read);
        Ticket& ticket = ring[static_cast<std::size_t>(slot)];
        ticket.wait();
        ticket = device().read(slot, next_read, order.from);
    }
}

void OverlappedHandler::run(const UpdateOrder& order) {
    Ring ring(slot_count());
    std::size_t next_read = 0;
    for (std::size_t subgroup = 0; subgroup < device().subgroups().size(); ++subgroup) {
        read_ahead(order, subgroup, next_read, ring);
        const int slot = slot_of(subgroup);
        Ticket& ticket = ring[static_cast<std::size_t>(slot)];
        ticket.wait();
        device().update(slot, subgroup, order.scalars);
        // New parameters leave while the next subgroup is updated, and this one is written.
        Ticket delivery = device().deliver(slot, subgroup, order.landing,
                                           [this, subgroup] { note_delivered(subgroup); });
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
