// The optimizer step of all ranks: gradients to the devices, update near storage, parameters back.
// step_pipeline.cpp has the way of the gradients, step_update.cpp the update and its parameters.
#pragma once

#include "base/executor.hpp"
#include "codec/codec.hpp"
#include "csd/device.hpp"
#include "csd/state_commit.hpp"
#include "csd/transfer_handler.hpp"
#include "memory/buffer.hpp"
#include "mpi/communicator.hpp"
#include "mpi/exchange/gradient_scatter.hpp"
#include "mpi/exchange/owner_sum.hpp"
#include "mpi/exchange/parameter_gather.hpp"
#include "mpi/exchange/routes.hpp"
#include "mpi/topology.hpp"
#include "offload/gpu_gradients.hpp"
#include "offload/gradient_assembly.hpp"
#include "offload/joint_sums.hpp"
#include "offload/step_state.hpp"
#include "shaping/node_links.hpp"
#include "shard/ownership.hpp"
#include "trace/traffic.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace nearstep::offload {

// The parameters that a rank's vector holds. `whole`: all of them. `parts`: some tiles permanently
// and others while they are needed, because ranks of several nodes hold the parameters together.
// `none`: they stay in the state.
enum class VectorKind { whole, parts, none };

// The pointers outlive the pipeline.
struct PipelineSettings {
    const shard::Ownership* owners = nullptr;
    const codec::Codec* codec = nullptr;  // until begin_step() names another
    std::size_t most_payload_bytes = 0;   // of all codecs in begin_step()
    bool has_error_feedback = false;
    Dtype dtype = Dtype::bf16;  // of parameters and dense gradients
    // The last ranks, which have no gradients and of the parameters only their own tiles. Each is
    // a group and a node of its own.
    int storage_ranks = 0;
    mpi::Topology groups;  // ranks of a node that sum gradients before encoding
    // Groups of whole nodes, whose sums are added up, too, before encoding; empty: none are.
    mpi::Topology joint_groups = {};
    mpi::Topology nodes;
    // This rank's padded parameter vector, in whole tiles. With parts it is made by
    // Buffer::untouched(), and with none, where nothing but the client writes it.
    memory::Buffer* vector = nullptr;
    VectorKind vector_kind = VectorKind::whole;
    mpi::Topology holders = {};  // with parts: ranks that hold the parameters together
    mpi::Topology sharers = {};  // ranks of a node that share a vector; empty: each has its own
    // Ranks of a node that wait until all of them have their tiles, such as those that share a
    // vector; empty: none do.
    mpi::Topology synchronised = {};
    csd::HandlerKind handler = csd::HandlerKind::overlapped;
    csd::Delivery delivery = csd::Delivery::parameters;  // of the devices
    std::vector<ElementRange> blocks;                    // in forward order
    const shaping::NodeLinks* links = nullptr;           // of the network; null: no rate limits
    Executor* pool = nullptr;  // decodes gradients and hands them to devices
    // The GPU where gradients are written, summed over the group and encoded; not with error
    // feedback. None: on the host.
    std::optional<int> gpu = std::nullopt;
    CUstream_st* gradient_stream = nullptr;  // gradients are written in it; null: the default one
    nccl::Group* gpu_group = nullptr;        // the group's ranks; null: this rank is its own group
    // All ranks, or those of the joint group, if all have GPUs and payloads travel between GPUs;
    // not with shaped links, nor to copies of the state. Null: payloads travel through host memory.
    nccl::Group* payload_ranks = nullptr;
};

// Describes the decoded sum over all ranks, with loss scale. Equal on all ranks, for every layout.
struct GradientSum {
    double norm = 0;  // Euclidean; not finite if any element is not
    bool is_finite = true;
};

// Durations of a step's update on this rank; zeros if it had none.
struct UpdateTimes {
    double update_s = 0;   // from the first release until state is written and parameters are here
    double devices_s = 0;  // until this rank's devices have written their state
    double after_s = 0;    // of `after`
    double waited_s = 0;   // that the caller waited for it
    exchange::ParameterGather::Waits waits = {};  // by the number of a rank among all
};

// A subgroup of this rank. `state` has room for each of its elements.
struct OwnedSubgroup {
    csd::Device* device = nullptr;
    std::size_t index = 0;  // of the device
    shard::TileRange tiles;

    std::size_t first_elem() const { return tiles.begin * shard::kTileElems; }
    std::size_t elems() const { return tiles.size() * shard::kTileElems; }
    void read(std::int64_t generation, const csd::StateArrays& state) const {
        device->read_state(index, generation, state);
    }
    void write(std::int64_t generation, const csd::StateArrays& state) const {
        device->write_state(index, generation, state);
    }
    std::span<std::byte> room_for(std::int64_t generation, memory::Buffer& memory) const {
        return device->room_for(index, generation, memory);
    }
    void write_stored(std::int64_t generation, memory::Buffer& memory) const {
        device->write_stored(index, generation, memory);
    }
};

// One per rank. Calls are collective and from the thread that calls MPI, unless stated otherwise. A
// step is: begin_step; put_gradient of all blocks, last first; finish_gradients; begin_update;
// accept_update; await as parameters are needed; finish_step before the next begin_step; commit, if
// steps must survive a crash. skip_update replaces begin_update and accept_update. The update may
// begin before the first put_gradient: then devices take gradients as they become final, and
// cancel_update or skip_update drops it. StepState refuses other orders.
class StepPipeline {
public:
    // `devices`: this rank's, in the order of its copy's device map.
    StepPipeline(const mpi::Communicator& world, PipelineSettings settings,
                 std::vector<std::unique_ptr<csd::Device>> devices, trace::Traffic& traffic);
    StepPipeline(const StepPipeline&) = delete;
    StepPipeline& operator=(const StepPipeline&) = delete;
    // May run at any time, but at the same point on all ranks. Finishes an accepted update, cancels
    // any other, and drops errors.
    ~StepPipeline();

    Stage stage() const { return state_.stage(); }
    // True from begin_update() until the update is over or cancelled.
    bool is_updating() const { return state_.update() >= UpdateStage::begun; }

    // --- Gradients ---

    // Sets how gradients are encoded for the owners, and how owners encode a tile's sum for their
    // devices (null: they pass payloads unchanged). With joint groups, nodes send their sums as
    // `of_nodes` says. Not collective, but the same on all ranks.
    void begin_step(const exchange::StepEncoding& encoding, const codec::Codec* sum_codec = nullptr,
                    const codec::Codec* of_nodes = nullptr);

    // Returns the memory for this rank's gradient of the block in fp32, if has_gpu(). Not
    // collective.
    std::span<float> gradient_space(std::size_t block);
    bool has_gpu() const { return gpu_gradients_.has_value(); }

    // Sends the block's gradient to the owners' devices, or that in gradient_space(block) if it has
    // no parts. With a GPU, which still works on it, the next call does. Ranks that serve have
    // none.
    void put_gradient(std::size_t block, const shard::Gradient& gradient);

    GradientSum finish_gradients();

    // --- The update ---

    // Starts to read the state of generation() for a begin_update() that follows or, if none does,
    // for nothing: then drop_read_ahead(). Reads in another order are dropped. Not collective.
    void read_ahead(csd::ReadAhead order);
    void drop_read_ahead();

    // Stores on this rank what the update to the next generation needs, see
    // csd::Device::keep_update(). Only when no update has begun, or when the one that has is the
    // same. Not collective.
    void keep_update(const csd::StepScalars& scalars);

    // Starts to update the state from generation() to the next, as gradients become final. Returns
    // at once. With deltas the vector holds the parameters of generation(), after a first gather().
    // `after` runs on another thread when all state of an accepted update is written.
    // finish_step() rethrows its errors and those of the devices.
    void begin_update(const csd::StepScalars& scalars, std::function<void()> after);
    // All gradients are there and finite: new parameters now go to the ranks. Devices may overwrite
    // the state of generation() where they keep the update.
    void accept_update();
    // Drops the update. Tiles whose gradients were final may have new parameters in the vector,
    // except with deltas. The state of generation() stays intact. Not collective.
    void cancel_update();
    // Ends the step without an update. Returns whether one was cancelled. Not collective.
    bool skip_update();

    // Whether await() has something to do: parameters come, or are spread over the ranks.
    bool must_await() const;
    // On return the elements `now` are here and final. With parts this drops tiles that are
    // neither in `now` nor in `later`; else blocks are awaited whole. If the vector is shared, or
    // with synchronised ranks, they are final for all of these.
    void await(std::span<const ElementRange> now, std::span<const ElementRange> later);
    // Brings all of `now`, and drops held tiles that are neither in `now` nor in `later`. Does
    // nothing unless parts.
    void hold(std::span<const ElementRange> now, std::span<const ElementRange> later);
    // Total seconds in await() and finish_update() for updates. Not collective.
    double waited_seconds() const { return waited_seconds_; }

    // Waits for all parameters of an accepted update, for its state to be written and for `after`.
    // Rethrows errors. Advances generation().
    void finish_update();
    // Does what finish_update() does, and ends the step.
    UpdateTimes finish_step();

    // Makes the manifests name `step`, which every rank's devices must hold durably
    // (StateCommit::prepare). The next step's finish_gradients() waits for all ranks, so none
    // writes before all have committed.
    void commit(csd::StateCommit& log, const store::Commit& step);

    // --- Outside steps ---

    // Brings every owner's tiles of the vector, which the owner has filled, unchanged to all ranks
    // of the copy; with parts, to one of those that hold the parameters together. Call once before
    // the first update.
    void gather();

    // Counts the deltas that this rank's devices have delivered so far. Not collective.
    codec::DeltaTally delta_tally() const { return gather_.tally(); }
    std::int64_t generation() const { return generation_; }
    // Call after the state was written from outside. Devices keep the generation before, if they
    // hold it, until accept(). Not collective.
    void set_generation(std::int64_t generation) { generation_ = generation; }
    // See csd::Device::accept(), with generation(). Not collective.
    void accept() { accept(generation_); }
    // The ranks that hold a copy of the optimizer state together with this one.
    const mpi::Communicator& copy_ranks() const { return copy_ranks_; }
    // This rank's devices, in the order of its copy's device map.
    const std::vector<std::unique_ptr<csd::Device>>& devices() const { return devices_; }

    // The residual that this rank feeds back; null without error feedback. Not collective.
    exchange::Residual* residual() { return scatter_.residual(); }
    // The ranks that hold a residual of the tile, ascending, and the one of them that takes the sum
    // of other ranks' residuals.
    std::vector<int> residual_ranks(std::size_t tile) const;
    int residual_heir(std::size_t tile) const;

    // For each device that lends memory: where in csd::Device::lent_memory() the gradients of each
    // block end, and those of all blocks before it. Not collective.
    std::vector<std::vector<std::size_t>> lent_ends() const;
    // Returns this rank's subgroups in tile order. Not collective.
    std::vector<OwnedSubgroup> subgroups() const;

private:
    using Clock = std::chrono::steady_clock;

    // Where a subgroup of this rank (an index in Partition::subgroups()) lies.
    struct Place {
        std::size_t device = 0;    // of this rank
        std::size_t subgroup = 0;  // of the device
    };

    bool computes() const { return world_.rank() < world_.size() - settings_.storage_ranks; }
    GpuGradientSettings gpu_settings() const;
    std::span<const exchange::Route> rounds_of(const std::vector<exchange::Route>& rounds,
                                               std::size_t block) const;
    void put_payloads(std::size_t block);
    void take(std::span<const exchange::TilePayloads> tiles,
              std::span<const exchange::Route> joint_rounds, std::span<const double> squares = {});
    void take_owned(std::span<const exchange::TilePayloads> tiles,
                    std::span<const double> squares = {});
    void take_tile(const exchange::TilePayloads& of, exchange::OwnerSum& sum,
                   const double* squares);

    exchange::ParameterGatherSettings gather_settings() const;
    exchange::ParameterGatherSettings bring_settings() const;
    void make_update(trace::Traffic& traffic);
    Place place_of(std::size_t subgroup) const;
    bool has_deltas() const { return settings_.delivery == csd::Delivery::deltas; }
    bool has_parts() const { return settings_.vector_kind == VectorKind::parts; }
    int holder_of(std::size_t tile) const;
    bool has_parameters(std::size_t subgroup);
    std::size_t message_room_bytes(std::size_t device) const;
    std::span<const std::byte> find_message(std::size_t subgroup);
    void release(std::size_t first);
    void accept(std::int64_t generation);
    void advance(std::size_t end);
    void synchronise(std::size_t end);
    void note_gathered();
    std::vector<bool> tiles_of(std::span<const ElementRange> ranges) const;

    const mpi::Communicator& world_;
    PipelineSettings settings_;
    const shard::Replica& copy_;  // that this rank's devices hold a part of
    mpi::Communicator copy_ranks_;
    std::vector<std::unique_ptr<csd::Device>> devices_;
    StepState state_;
    std::int64_t generation_ = 0;
    // Gradients.
    std::vector<exchange::Route> joint_rounds_;  // of all blocks, with joint groups
    std::optional<JointSums> joint_;
    exchange::Routes routes_;                     // of all ranks, or of the joint group
    std::vector<exchange::Route> rounds_;         // of all blocks
    std::vector<std::size_t> first_round_ = {0};  // of each block in either, and the end
    exchange::GradientScatter scatter_;
    GradientAssembly assembly_;
    std::optional<GpuGradients> gpu_gradients_;
    std::optional<std::size_t> encoding_block_;   // on the GPU
    bool sums_payloads_ = false;                  // owners encode sums of this step's payloads
    std::size_t final_from_ = 0;                  // gradients of tiles from here on were put
    std::vector<exchange::OwnerSum> owner_sums_;  // one per thread of the pool
    std::vector<double> squares_of_tile_;         // of all tiles; 0 outside the first copy
    // The update.
    std::vector<std::unique_ptr<csd::TransferHandler>> handlers_;  // of the devices
    csd::ReadAhead order_ = csd::ReadAhead::from_first;            // while they are reading
    exchange::ParameterGather gather_;
    std::optional<mpi::Communicator> holders_;        // with parts
    std::optional<exchange::ParameterGather> bring_;  // between them
    std::vector<memory::Buffer> messages_;            // of each device, with deltas
    bool has_equal_copies_ = false;                   // all ranks' vectors were equal once
    std::optional<mpi::Communicator> synchronised_;   // ranks that wait for each other
    std::size_t synchronised_until_ = 0;              // tiles before it are final for synchronised_
    std::vector<bool> is_held_;                       // by tile and all holders, with parts
    UpdateTimes times_;
    double waited_seconds_ = 0;
    std::optional<Clock::time_point> began_;     // first release of tiles
    std::optional<Clock::time_point> gathered_;  // when all parameters were seen to be here
    Clock::time_point written_;                  // set by ending_, like ended_
    Clock::time_point ended_;
    Ticket ending_;
    Executor ending_worker_{1};  // last member, so that it ends first
};

}  // namespace nearstep::offload
