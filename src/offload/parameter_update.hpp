// The update of a rank's devices, and the new parameters' way to all ranks of its copy, which go on
// while the rank computes.
#pragma once

#include "csd/device.hpp"
#include "csd/transfer_handler.hpp"
#include "memory/buffer.hpp"
#include "mpi/communicator.hpp"
#include "mpi/exchange/delta_gather.hpp"
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

// A rank's parameter vector: all parameters; the same and shared by the ranks of its node; or, for
// good, those of its own tiles, and others while they are needed (see parameter_window.hpp).
enum class VectorKind { whole, shared_in_node, own_tiles };

struct UpdateSettings {
    VectorKind vector = VectorKind::whole;
    bool meets_in_node = false;  // ranks of a node go on together: none before all have their tiles
    csd::HandlerKind handler = csd::HandlerKind::overlapped;
    csd::Delivery delivery = csd::Delivery::parameters;  // of the devices
    exchange::GatherSettings gather;
};

// How an update ended on this rank.
struct UpdateTimes {
    double update_s = 0;  // from its begin until the state was written and the parameters here
    double after_s = 0;   // of what was to follow the writes
};

// One per rank, of the ranks of a copy; collective unless it says otherwise, from the thread that
// calls MPI, with the same arguments on all ranks. An update is: begin; release, as gradients
// arrive; accept; advance, any number of times; finish. Or cancel instead of accept.
class ParameterUpdate {
public:
    using Devices = std::vector<std::unique_ptr<csd::Device>>;

    // `devices`: of this rank, in the order of the copy's device map. They and the communicator
    // outlive this.
    ParameterUpdate(const mpi::Communicator& copy_ranks, const UpdateSettings& settings,
                    const Devices& devices, trace::Traffic& traffic);
    ParameterUpdate(const ParameterUpdate&) = delete;
    ParameterUpdate& operator=(const ParameterUpdate&) = delete;
    // At any moment, though the same on all ranks: an update that was accepted is finished, any
    // other is cancelled, and an error of either is dropped.
    ~ParameterUpdate();

    struct Place {
        std::size_t device = 0;    // of this rank
        std::size_t subgroup = 0;  // of the device
    };
    // Of a subgroup of this rank (a position in Partition::subgroups()). Not collective.
    Place place_of(std::size_t subgroup) const;

    // Begins to take the state from generation `from` to the next, as it is released; returns at
    // once. `vector` is this rank's padded parameter vector; with deltas it holds the parameters of
    // `from`, which gather() brought first. `after` runs when all state is written, on another
    // thread; an error of it or of the devices comes out of finish().
    void begin(const csd::StepScalars& scalars, std::int64_t from, std::span<std::byte> vector,
               std::function<void()> after);

    // From begin() to finish() or cancel(). Not collective.
    bool is_under_way() const { return is_under_way_; }

    // The gradients of all tiles from `first` on are where devices read them, and nobody reads
    // these tiles' parameters in vectors any more: devices may put the new ones in this rank's.
    // None reaches other ranks before accept(). Not collective.
    void release(std::size_t first);

    // All gradients are there and finite: from here on new parameters go to the ranks.
    void accept();

    // The step is not to be. The vector's tiles that were released may have new parameters, unless
    // they are delivered as deltas; the state of `from` is whole. Not collective.
    void cancel();

    // Moves parameters on without waiting. Not collective. MPI moves data only inside its calls:
    // the more often, the better.
    void poll();

    // Blocks until the parameters before tile `end` are final in `vector`, for the rank's own kind
    // of it: with own_tiles, where bring() waits for what it brings, at once. With meets_in_node,
    // and where it is shared, in the vectors of all ranks of the node.
    void advance(std::size_t end);

    // Blocks until all are, the state is written and `after` has run. Rethrows their errors.
    UpdateTimes finish();

    // Brings all owners' parts of `vector`, already filled by each for its own tiles, to all ranks
    // of the copy, as they are, unless vectors have their own tiles only. Once before the first
    // update.
    void gather(std::span<std::byte> vector);

    // Brings these tiles, ascending, from the owners' vectors, where an update under way puts them,
    // to all ranks of the copy.
    void bring(std::span<std::byte> vector, std::span<const shard::TileRange> tiles);

    // What this rank's devices delivered by deltas so far. Not collective.
    codec::DeltaTally delta_tally() const;

private:
    using Clock = std::chrono::steady_clock;

    // A device's messages lie side by side, each in room for the largest.
    std::size_t message_room_bytes(std::size_t device) const;
    int first_device() const;
    bool has_parameters(std::size_t subgroup);
    std::span<const std::byte> find_message(std::size_t subgroup);
    void meet_in_node(std::size_t end);
    bool is_gathered() const;
    void note_gathered();

    const mpi::Communicator& copy_ranks_;
    UpdateSettings settings_;
    const Devices& devices_;
    std::vector<std::unique_ptr<csd::TransferHandler>> handlers_;
    exchange::ParameterGather gather_;
    std::optional<exchange::DeltaGather> delta_gather_;
    std::vector<memory::Buffer> messages_;         // of each device, with deltas
    bool has_equal_copies_ = false;                // the ranks' vectors were the same once
    std::optional<mpi::Communicator> node_ranks_;  // that share a vector, or go on together
    std::size_t met_ = 0;                          // tiles before it are final for all of these
    bool is_under_way_ = false;
    bool is_accepted_ = false;
    std::atomic<bool> is_cancelled_{false};
    std::span<std::byte> vector_;
    std::optional<Clock::time_point> began_;     // when first something was released
    std::optional<Clock::time_point> gathered_;  // when all parameters were seen to be here
    Clock::time_point written_;                  // set by ending_, as is the next
    Clock::time_point ended_;
    store::Ticket ending_;
    store::Lane ending_lane_;  // last, so that it ends first
};

}  // namespace nearstep::offload
