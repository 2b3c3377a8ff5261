// One computational storage device (CSD): state in storage, an engine near it, and slots between.
#pragma once

#include "base/dtype.hpp"
#include "base/executor.hpp"
#include "codec/codec.hpp"
#include "csd/step_scalars.hpp"
#include "memory/buffer.hpp"
#include "shard/partition.hpp"
#include "trace/timeline.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace nearstep::csd {

class GpuTensors;

// How new parameters leave a device: as plain values, as deltas against the values it sent last, or
// not at all: read_masters() reads them from the state.
enum class Delivery { parameters, deltas, none };

// The fp32 state of some tiles; each span has tiles x 65,536 elements.
struct StateArrays {
    std::span<float> master;
    std::span<float> moment1;
    std::span<float> moment2;
};

// Memory for the state of one subgroup after the other, taken at first use.
class StateMemory {
public:
    // Returns memory for `elems` elements. If `elems` is larger than before, earlier values are
    // lost.
    StateArrays of(std::size_t elems) {
        if (floats_.size() < 3 * elems) {
            floats_ = std::vector<float>(3 * elems);
        }
        const std::span<float> all(floats_);
        return {all.first(elems), all.subspan(elems, elems), all.subspan(2 * elems, elems)};
    }

private:
    std::vector<float> floats_;
};

// Subgroups are numbered within the device, in forward order. Writing generation g+1 of one keeps g
// intact: each has two places, which take turns, or all share spare ones and accept() says when g
// is not needed any more. Calls on different slots may come from
// different threads. Gradient calls come one at a time, except put_gradient() if tiles need no
// order, and never during an update of the same subgroup.
class Device {
public:
    virtual ~Device() = default;

    // Where handlers record the device's stages; null: nowhere. `number`: the device's index within
    // its rank.
    struct Tracing {
        trace::Timeline* timeline = nullptr;
        int number = 0;
    };
    void trace(const Tracing& tracing) { tracing_ = tracing; }
    const Tracing& tracing() const { return tracing_; }

    // "rank 0 device 1 (/mnt/a/...)": for messages.
    virtual const std::string& name() const = 0;

    virtual const std::vector<shard::Subgroup>& subgroups() const = 0;
    virtual int slots() const = 0;
    // The first slots that are for one subgroup each, the one with the slot's number, and keep its
    // state from one update to the next. Other slots are for any subgroup.
    virtual int kept_slots() const { return 0; }
    // The next slots, which are only for state that is read ahead: it waits in the memory of a GPU.
    // During an update these slots are too slow to fill and to empty.
    virtual int ahead_slots() const { return 0; }
    // How many of the slots for any subgroup may hold state that was read or that is being written.
    // More slots than these would only wait for their writes to end.
    virtual int reading_slots() const { return slots() - kept_slots() - ahead_slots(); }

    // Describes the transport and slot memory for a run's first lines: "io_uring, direct, 38 MB of
    // buffers of which 38 MB on huge pages". Never during an update.
    virtual std::string describe_io() const = 0;

    // Bytes written to each drive since it was opened, except by reserve().
    virtual std::vector<std::uint64_t> written_bytes() const = 0;

    // Makes and locks what the storage lacks, such as a file; see store::File. A start that is then
    // refused calls withdraw(), which removes what claim() or reserve() made.
    virtual void claim() {}
    virtual void withdraw() {}
    // Names the state that the storage holds from now on, by store::number_of_state(): what is
    // written carries the number, and what was written for another state is refused. A device whose
    // memory no other process reads needs none.
    virtual void belong_to(std::uint64_t /*state*/) {}
    // Fills the storage with zeros and reserves all of its space. Before the call it holds the
    // state of an earlier run.
    virtual void reserve() = 0;
    // The space is there and updates follow: the device may prepare for them in the background.
    virtual void expect_updates() {}
    // How many subgroups an update may have begun with before accept() names its generation. Others
    // would wait for places that still hold the state before it.
    virtual std::size_t most_unaccepted() const { return subgroups().size(); }
    // The run goes on from this generation: no other one is needed of a subgroup that has it, and
    // from here on an update to it may overwrite what was before. Newer state is given up. Not
    // while state is written.
    virtual void accept(std::int64_t /*generation*/) {}
    // Stores the gradients and scalars of the next update, to this generation, so that a restart
    // can repeat it once accept() has named it. Only of devices that keep a log, and not during an
    // update.
    virtual void keep_update(std::int64_t /*generation*/, const StepScalars& /*scalars*/) {}
    // Stores what read_state() has repeated from the log, if the next update needs it in its place.
    // Called once all state is known to be whole: a start that is refused changes nothing. Returns
    // at once.
    virtual Ticket store_repeated(std::int64_t /*generation*/) { return {}; }
    // The most updates of a subgroup that were repeated from logs.
    virtual std::int64_t most_repeated() const { return 0; }
    // All state written and waited for so far survives a power cut once the ticket is complete.
    // Returns at once.
    virtual Ticket flush() = 0;

    // Sets the codec of all payloads put from now on; it outlives the device. Not during an update.
    virtual void use_codec(const codec::Codec& codec) = 0;
    // Sets the parameter group of each element from now on. Not during an update. Throws
    // ConfigError if the device cannot separate these groups.
    virtual void use_groups(const GroupMap& groups) = 0;
    // From now on, also in an update that has begun, a GPU that makes new parameters may write them
    // to these tensors instead of `destination`. The tensors outlive the update; null: everything
    // goes to `destination`.
    virtual void deliver_to(GpuTensors* /*tensors*/) {}
    // The gradient of one tile of the parameter vector, for the next update: one payload per source
    // in rank order, and their sum. The device uses the sum if takes_sums(), and else the payloads.
    // The spans may be reused on return.
    virtual void put_gradient(std::size_t tile,
                              std::span<const std::span<const std::byte>> payloads,
                              std::span<const float> sum) = 0;
    virtual bool takes_sums() const { return false; }
    // True if neighbouring tiles should come in ascending order and calls one at a time. False if
    // several threads may put different tiles at once.
    virtual bool takes_tiles_in_order() const { return true; }
    // Returns when all gradients put so far are ready for the update.
    virtual void finish_gradients() = 0;
    // Bytes of host memory into which put_gradient() copies, equally many for each tile, in the
    // device's order. Between an update and the next gradients nobody reads them: the client may
    // use those of a tile until its gradient is put. 0: they are not lent.
    virtual std::size_t lent_bytes() const { return 0; }
    // That memory. Only after expect_updates().
    virtual std::span<std::byte> lent_memory() { return {}; }

    // Slot memory. A handler that reuses slots calls this once at start; others call it per
    // subgroup.
    virtual void allocate_slot(int slot) = 0;
    virtual void release_slot(int slot) = 0;

    // The stages of one subgroup's update, in this order. read(), deliver() and write() may return
    // before they are done. deliver() and write() may overlap; the slot is free when both are done.
    virtual Ticket read(int slot, std::size_t subgroup, std::int64_t generation) = 0;
    // Runs the engine on a slot that was read, each element with its group's scalars. May write new
    // parameters to their places in `destination`, the same as deliver()'s. May return before the
    // engine is done: deliver() and write() then wait, and their tickets throw its error.
    virtual void update(int slot, std::size_t subgroup, const StepScalars& scalars,
                        std::span<std::byte> destination) = 0;
    // Brings the new parameters to host memory. Plain values go to their places in `destination`,
    // the whole (padded) parameter vector. Deltas go as one message (codec/delta.hpp) to the
    // subgroup's place in `destination`, where each subgroup has room for the largest message.
    // `on_delivered` is called when they have arrived, on any thread; without delivery, when
    // write() has stored them.
    using DeliveryCallback = std::function<void()>;
    virtual Ticket deliver(int slot, std::size_t subgroup, std::span<std::byte> destination,
                           const DeliveryCallback& on_delivered) = 0;
    virtual Ticket write(int slot, std::size_t subgroup, std::int64_t generation) = 0;

    // Moves state over the host link outside a step: to initialise, checkpoint or restore. Any
    // thread may call these, for different subgroups at once.
    // read_state() widens narrow formats exactly. It throws IoError if the stored generation or
    // checksum is wrong, and ConfigError if the state is another one.
    // write_state() rounds to the stored format and replaces `state` by the stored values. Values
    // from read_state() are stored unchanged.
    virtual void read_state(std::size_t subgroup, std::int64_t generation,
                            const StateArrays& state) = 0;
    virtual void write_state(std::size_t subgroup, std::int64_t generation,
                             const StateArrays& state) = 0;
    // Stores state whose bytes the caller has (state_of_tile()): it writes the arrays to the
    // payload that room_for() returns, and write_stored() makes that the version. The payload lies
    // in the storage, or in `memory`, which both calls get and which grows to hold it.
    virtual std::span<std::byte> room_for(std::size_t subgroup, std::int64_t generation,
                                          memory::Buffer& memory) = 0;
    virtual void write_stored(std::size_t subgroup, std::int64_t generation,
                              memory::Buffer& memory) = 0;

    // Reads masters as they are stored (master_dtype() of the state's format), from element `first`
    // of the subgroup on. Whole pages (kReadElems), in memory that is aligned like them. With
    // Delivery::none they are verified, and the ticket throws DamageError for others; masters that
    // this process keeps in memory are not. Any thread may call, also during an update to the next
    // generation. With spare places what is read meanwhile is of either generation, or the ticket
    // throws.
    virtual Ticket read_masters(std::size_t subgroup, std::int64_t generation, std::size_t first,
                                std::span<std::byte> to) = 0;
    static constexpr std::size_t kReadElems = 2048;  // a page of 16-bit masters

    // Whether this process has all state in host memory, which its GPU, if it has one, reads by
    // now.
    virtual bool shows_masters() const { return false; }
    // Where masters of this generation lie in it, as read_masters() has them. They stay until the
    // next update. Requires shows_masters().
    virtual std::span<const std::byte> masters_in_memory(std::size_t /*subgroup*/,
                                                         std::int64_t /*generation*/) {
        return {};
    }

private:
    Tracing tracing_;
};

}  // namespace nearstep::csd
