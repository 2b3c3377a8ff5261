// One computational storage device (CSD): state in storage, an engine near it, a slot ring between.
#pragma once

#include "base/dtype.hpp"
#include "codec/codec.hpp"
#include "csd/step_scalars.hpp"
#include "shard/partition.hpp"
#include "store/ticket.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace nearstep::csd {

using store::Ticket;

// How new parameters leave a device: as they are, or as deltas against the old ones, which must be
// what it sent last.
enum class Delivery { parameters, deltas };

// The fp32 state of some tiles; each span has tiles x 65,536 elements.
struct StateArrays {
    std::span<float> master;
    std::span<float> moment1;
    std::span<float> moment2;
};

// Subgroups are numbered within the device, in forward order. State belongs to a generation; a
// subgroup has two places, and generation g lies at place g modulo 2, so that writing g+1 leaves g
// whole. Calls on different slots may come from different threads. Gradient calls come one at a
// time, but for put_gradient() where tiles need no order, and never while an update of the same
// subgroup is under way.
class Device {
public:
    virtual ~Device() = default;

    // "rank 0 device 1 (/mnt/a/...)": for messages.
    virtual const std::string& name() const = 0;

    virtual const std::vector<shard::Subgroup>& subgroups() const = 0;
    virtual int slots() const = 0;

    // How state moves and where the slots lie, as a phrase for the head of a run: "io_uring,
    // direct, 38 MB of buffers of which 38 MB on huge pages". Never during an update.
    virtual std::string describe_io() const = 0;

    // Bytes written to each of its drives since it was opened, without what reserve() wrote.
    virtual std::vector<std::uint64_t> written_bytes() const = 0;

    // Replaces the storage by zeros, all of whose space is reserved. Until then it holds what an
    // earlier run left.
    virtual void reserve() = 0;
    // All state written and waited for so far outlives a power cut once the ticket is complete.
    // Returns at once.
    virtual Ticket flush() = 0;

    // The payloads put from now on are of this codec, which outlives the device. Not while an
    // update is under way.
    virtual void use_codec(const codec::Codec& codec) = 0;
    // Which parameter group each element belongs to from now on. Not while an update is under way.
    // Throws ConfigError if the device cannot tell these groups apart.
    virtual void use_groups(const GroupMap& groups) = 0;
    // The gradient of one tile of the parameter vector, for the next update: one payload per source
    // in rank order, and their sum, of which the device moves what it needs. The spans are free on
    // return.
    virtual void put_gradient(std::size_t tile,
                              std::span<const std::span<const std::byte>> payloads,
                              std::span<const float> sum) = 0;
    // Whether tiles that are neighbours should come one after the other, ascending, and always one
    // at a time; else several threads may put different tiles at once.
    virtual bool takes_tiles_in_order() const { return true; }
    // Returns when all gradients put so far are where the update reads them.
    virtual void finish_gradients() = 0;

    // Slot memory. Called once at start by a handler that reuses slots, per subgroup by one that
    // does not.
    virtual void allocate_slot(int slot) = 0;
    virtual void release_slot(int slot) = 0;

    // The stages of one subgroup's update, in this order. read(), deliver() and write() may return
    // before they are done, and the last two may go on at once; the slot is free when both are.
    virtual Ticket read(int slot, std::size_t subgroup, std::int64_t generation) = 0;
    // Runs the engine on a slot that was read, each element by its group's scalars, or hands the
    // slot to one that runs by itself: deliver() and write() wait for it, and throw its error from
    // their tickets.
    virtual void update(int slot, std::size_t subgroup, const StepScalars& scalars) = 0;
    // Copies the new parameters to host memory. As they are: to their places in `landing`, the
    // whole (padded) parameter vector. As deltas (Delivery): a message (codec/delta.hpp) to the
    // place of the subgroup in `landing`, where each has room for a message of the most tiles.
    // `landed` is called when they are there, in the order of the calls, on any thread.
    using Landed = std::function<void()>;
    virtual Ticket deliver(int slot, std::size_t subgroup, std::span<std::byte> landing,
                           const Landed& landed) = 0;
    virtual Ticket write(int slot, std::size_t subgroup, std::int64_t generation) = 0;

    // State over the host link, outside a step: to initialise, to make a checkpoint, to restore.
    // The first throws IoError if the stored generation or checksum is not the one asked for; it
    // widens narrower formats exactly. The second rounds to the stored format, and on return
    // `state` holds what was stored; state from the first is stored as it was. Any thread may call
    // them, for different subgroups at once.
    virtual void read_state(std::size_t subgroup, std::int64_t generation,
                            const StateArrays& state) = 0;
    virtual void write_state(std::size_t subgroup, std::int64_t generation,
                             const StateArrays& state) = 0;
};

}  // namespace nearstep::csd
