#include "csd/handler_shell.hpp"

namespace nearstep::csd {

namespace {

// The paper's SU: each subgroup gets memory, is read, updated, delivered and written, and frees the
// memory before the next one begins.
class NaiveHandler : public HandlerShell {
public:
    using HandlerShell::HandlerShell;
    NaiveHandler(const NaiveHandler&) = delete;
    NaiveHandler& operator=(const NaiveHandler&) = delete;
    ~NaiveHandler() override { stop(); }

private:
    void run(const UpdateOrder& order) override;
    void update_subgroup(const UpdateOrder& order, std::size_t subgroup);
};

void NaiveHandler::run(const UpdateOrder& order) {
    while (const auto subgroup = take(Patience::waits)) {
        device().allocate_slot(0);
        try {
            update_subgroup(order, *subgroup);
        } catch (...) {
            device().release_slot(0);
            throw;
        }
        device().release_slot(0);
    }
}

void NaiveHandler::update_subgroup(const UpdateOrder& order, std::size_t subgroup) {
    device().read(0, subgroup, order.from).wait();
    device().update(0, subgroup, order.scalars, order.landing);
    device()
        .deliver(0, subgroup, order.landing, [this, subgroup] { note_delivered(subgroup); })
        .wait();
    device().write(0, subgroup, order.from + 1).wait();
}

}  // namespace

std::unique_ptr<TransferHandler> make_naive_handler(Device& device) {
    return std::make_unique<NaiveHandler>(device);
}

}  // namespace nearstep::csd
