// The transfer handler: moves the subgroups of one device through read, update, deliver and write.
#pragma once

#include "csd/device.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace nearstep::csd {

// naive: allocate, read, update, write, free, one subgroup after another (the paper's SU).
// overlapped: a ring of slots allocated once; while a subgroup is updated the next is read and
// the last is written, and parameters leave before the state is written (the paper's SU+O).
enum class HandlerKind { naive, overlapped };

// Owns a thread; begin .. finish frame one update. Called from one thread, but for finish(), which
// may come from another once the others need no more calls.
class TransferHandler {
public:
    // The device outlives the handler. overlapped wants a device of at least 3 slots.
    static std::unique_ptr<TransferHandler> make(HandlerKind kind, Device& device);

    virtual ~TransferHandler() = default;

    // Begins to take the subgroups from generation `from` to `from` + 1, each once it is released;
    // returns at once. `landing`: in host memory, written subgroup by subgroup as Device::deliver
    // says.
    virtual void begin(const StepScalars& scalars, std::int64_t from,
                       std::span<std::byte> landing) = 0;

    // The gradients of the subgroups from `first` on are there, and `first` is no higher than the
    // last time. Until all are, the last one released goes first, as gradients come last first;
    // then those that are left go in forward order.
    virtual void release(std::size_t first) = 0;

    // No other subgroup is begun; finish() waits for those that were.
    virtual void cancel() = 0;

    // All in forward order.
    void start(const StepScalars& scalars, std::int64_t from, std::span<std::byte> landing) {
        begin(scalars, from, landing);
        release(0);
    }

    // True once the new parameters of this subgroup have landed. Rethrows an error of the update.
    virtual bool has_parameters(std::size_t subgroup) = 0;

    // Blocks until has_parameters.
    virtual void wait_parameters(std::size_t subgroup) = 0;

    // Blocks until all state is written, for which all subgroups must have been released or the
    // rest cancelled; rethrows an error of the update.
    virtual void finish() = 0;
};

}  // namespace nearstep::csd
