// Moves the subgroups of one device through read, update, deliver and write.
#pragma once

#include "csd/device.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace nearstep::csd {

// naive: allocate, read, update, write and free, one subgroup after another (the paper's SU).
// overlapped: a ring of slots allocated once. While a subgroup is updated, the next is read and the
// previous one written. Parameters are delivered before state is written (the paper's SU+O).
enum class HandlerKind { naive, overlapped };

// The subgroups that are read ahead: from the first, or from the last.
enum class ReadAhead { from_first, from_last };

// Owns a thread. begin() and finish() enclose one update. One thread calls, except finish():
// another thread may call that once no other calls follow.
class TransferHandler {
public:
    // The device outlives the handler. overlapped requires a device with at least 3 slots.
    static std::unique_ptr<TransferHandler> make(HandlerKind kind, Device& device);

    virtual ~TransferHandler() = default;

    // Starts to read the state of generation `from` into all slots but one that the device does not
    // keep, before the gradients are known. The next begin() takes it up and updates these
    // subgroups first, once they are released. A naive handler does nothing. Not during an update.
    virtual void read_ahead(std::int64_t from, ReadAhead order) = 0;

    // Drops what was read ahead, because no update follows.
    virtual void drop_read_ahead() = 0;

    // Starts the update of all subgroups from generation `from` to `from` + 1, each once it is
    // released. Returns at once. `landing` is host memory, filled by subgroup as Device::deliver
    // says.
    virtual void begin(const StepScalars& scalars, std::int64_t from,
                       std::span<std::byte> landing) = 0;

    // The gradients of subgroups from `first` on are ready. `first` never increases during an
    // update. Until all are released, the highest one goes next, because the backward pass yields
    // the last gradients first. The rest then goes in forward order.
    virtual void release(std::size_t first) = 0;

    // Begins no more subgroups; finish() waits for those that began.
    virtual void cancel() = 0;

    // Releases all subgroups, in forward order.
    void start(const StepScalars& scalars, std::int64_t from, std::span<std::byte> landing) {
        begin(scalars, from, landing);
        release(0);
    }

    // True once the subgroup's new parameters have landed. Rethrows an error of the update.
    virtual bool has_parameters(std::size_t subgroup) = 0;

    // Blocks until has_parameters() is true.
    virtual void wait_parameters(std::size_t subgroup) = 0;

    // Blocks until all state is written; rethrows an error of the update. Every subgroup must be
    // released, or the rest cancelled, before.
    virtual void finish() = 0;
};

}  // namespace nearstep::csd
