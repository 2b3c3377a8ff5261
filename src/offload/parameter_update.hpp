// Runs the update on a rank's devices and brings the new parameters to all ranks of its copy, while
// the rank computes.
#pragma once

#include "csd/device.hpp"
#include "csd/transfer_handler.hpp"
#include "memory/buffer.hpp"
#include "mpi/communicator.hpp"
#include "mpi/exchange/parameter_gather.hpp"
#include "shard/ownership.hpp"
#include "store/ticket.hpp"
#include "trace/traffic.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace nearstep::offload {

// What a rank's parameter vector holds: all parameters; all, shared by the ranks of its node; or
// only its own tiles permanently, and others while they are needed (see parameter_window.hpp).
enum class VectorKind { whole, shared_in_node, own_tiles };

struct UpdateSettings {
    VectorKind vector = VectorKind::whole;
    bool meets_in_node = false;  // each rank of a node waits until all have their tiles
    csd::HandlerKind handler = csd::HandlerKind::overlapped;
    exchange::ParameterGatherSettings gather;
};

// Durations of an update on this rank.
struct UpdateTimes {
    double update_s = 0;  // from the first release until state is written and parameters are here
    double after_s = 0;   // of `after`
};

// One per rank of a copy. Calls are collective and from the thread that calls MPI, with the same
// arguments on all ranks, unless stated otherwise. An update is: begin; release as gradients
// arrive; accept; advance any number of times; finish. cancel replaces accept to drop it.
class ParameterUpdate {
public:
    using Devices = std::vector<std::unique_ptr<csd::Device>>;

    // `devices`: this rank's, in the order of the copy's device map. They and the communicator
    // outlive this.
    ParameterUpdate(const mpi::Communicator& copy_ranks, const UpdateSettings& settings,
                    const Devices& devices, trace::Traffic& traffic);
    ParameterUpdate(const ParameterUpdate&) = delete;
    ParameterUpdate& operator=(const ParameterUpdate&) = delete;
    // May run at any time, but at the same point on all ranks. Finishes an accepted update, cancels
    // any other, and drops errors.
    ~ParameterUpdate();

    struct Place {
        std::size_t device = 0;    // of this rank
        std::size_t subgroup = 0;  // of the device
    };
    // Where a subgroup of this rank (an index in Partition::subgroups()) lies. Not collective.
    Place place_of(std::size_t subgroup) const;

    // Starts to read the state of generation `from`, for a begin() that follows or for nothing:
    // then drop_read_ahead(). Not collective.
    void read_ahead(std::int64_t from, csd::ReadAhead order);
    void drop_read_ahead();

    // Starts to update the state from generation `from` to the next, as tiles are released. Returns
    // at once. `vector` is this rank's padded parameter vector. With deltas it holds the parameters
    // of `from`, after a first gather(). `after` runs on another thread when all state is written.
    // finish() rethrows its errors and those of the devices.
    void begin(const csd::StepScalars& scalars, std::int64_t from, std::span<std::byte> vector,
               std::function<void()> after);

    // True from begin() to finish() or cancel(). Not collective.
    bool is_under_way() const { return is_under_way_; }

    // The gradients of all tiles from `first` on are ready for the devices, and nobody reads these
    // tiles' parameters in vectors any more. Devices may write new ones to this rank's vector;
    // other ranks get none before accept(). Not collective.
    void release(std::size_t first);

    // All gradients are there and finite: new parameters now go to the ranks.
    void accept();

    // Drops the step. Released tiles of the vector may hold new parameters, except with deltas. The
    // state of `from` stays intact. Not collective.
    void cancel();

    // Moves parameters on without waiting. Call it often: MPI moves data only inside its calls. Not
    // collective.
    void poll();

    // Blocks until the parameters before tile `end` are final in `vector`. Returns at once with
    // own_tiles, where bring() waits. If the vector is shared, or with meets_in_node, they are
    // final for all ranks of the node.
    void advance(std::size_t end);

    // Waits for all parameters, for the state to be written and for `after`. Rethrows errors.
    UpdateTimes finish();

    // Brings every owner's tiles of `vector`, which the owner has filled, unchanged to all ranks of
    // the copy. Does nothing with own_tiles. Call once before the first update.
    void gather(std::span<std::byte> vector);

    // Brings these tiles, ascending, from the owners' vectors to all ranks of the copy. Works
    // during an update, which writes to those vectors.
    void bring(std::span<std::byte> vector, std::span<const shard::TileRange> tiles);

    // What this rank's devices delivered as deltas so far. Not collective.
    const codec::DeltaTally& delta_tally() const { return gather_.tally(); }

private:
    using Clock = std::chrono::steady_clock;

    bool has_deltas() const { return settings_.gather.has_deltas; }
    bool gathers() const { return settings_.vector != VectorKind::own_tiles; }
    // A device's messages lie side by side, each with room for the largest.
    std::size_t message_room_bytes(std::size_t device) const;
    int first_device() const;
    bool has_parameters(std::size_t subgroup);
    std::span<const std::byte> find_message(std::size_t subgroup);
    void meet_in_node(std::size_t end);
    void note_gathered();

    const mpi::Communicator& copy_ranks_;
    UpdateSettings settings_;
    const Devices& devices_;
    std::vector<std::unique_ptr<csd::TransferHandler>> handlers_;
    exchange::ParameterGather gather_;
    std::vector<memory::Buffer> messages_;         // of each device, with deltas
    bool has_equal_copies_ = false;                // all ranks' vectors were equal once
    std::optional<mpi::Communicator> node_ranks_;  // that share a vector or wait for each other
    std::size_t met_ = 0;                          // tiles before it are final for node_ranks_
    bool is_under_way_ = false;
    bool is_accepted_ = false;
    std::atomic<bool> is_cancelled_{false};
    std::span<std::byte> vector_;
    std::optional<Clock::time_point> began_;     // first release of tiles
    std::optional<Clock::time_point> gathered_;  // when all parameters were seen to be here
    Clock::time_point written_;                  // set by ending_, like ended_
    Clock::time_point ended_;
    store::Ticket ending_;
    store::Worker ending_worker_;  // last member, so that it ends first
};

}  // namespace nearstep::offload
