// The optimizer step of all ranks: gradients to the devices, update near storage, parameters back.
#pragma once

#include "base/thread_pool.hpp"
#include "codec/codec.hpp"
#include "csd/device.hpp"
#include "csd/state_commit.hpp"
#include "link/node_links.hpp"
#include "mpi/communicator.hpp"
#include "mpi/exchange/gradient_scatter.hpp"
#include "mpi/exchange/owner_sum.hpp"
#include "mpi/topology.hpp"
#include "offload/gpu_gradients.hpp"
#include "offload/gradient_assembly.hpp"
#include "offload/parameter_update.hpp"
#include "shard/ownership.hpp"
#include "trace/traffic.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace nearstep::offload {

// The pointers outlive the pipeline.
struct PipelineSettings {
    const shard::Ownership* owners = nullptr;
    const codec::Codec* codec = nullptr;  // until begin_step() names another
    std::size_t most_payload_bytes = 0;   // of all codecs in begin_step()
    bool has_error_feedback = false;
    Dtype dtype = Dtype::bf16;  // of parameters and dense gradients
    mpi::Topology groups;       // ranks that sum gradients before encoding
    mpi::Topology nodes;
    VectorKind vector = VectorKind::whole;
    bool meets_in_node = false;  // as in UpdateSettings
    csd::HandlerKind handler = csd::HandlerKind::overlapped;
    csd::Delivery delivery = csd::Delivery::parameters;  // of the devices
    std::vector<ElementRange> blocks;                    // in forward order
    const link::NodeLinks* links = nullptr;              // of the network; null: no rate limits
    ThreadPool* pool = nullptr;  // decodes gradients and hands them to devices
    // The GPU where gradients are written, summed over the group and encoded; not with error
    // feedback. None: on the host.
    std::optional<int> gpu = std::nullopt;
    CUstream_st* gradient_stream = nullptr;  // gradients are written in it; null: the default one
    nccl::Group* gpu_group = nullptr;        // the group's ranks; null: this rank is its own group
    // All ranks, if all have GPUs and payloads travel between GPUs; not with copies of the state or
    // shaped links. Null: payloads travel through host memory.
    nccl::Group* payload_ranks = nullptr;
};

// Describes the decoded sum over all ranks, with loss scale. Equal on all ranks, for every layout.
struct GradientFacts {
    double norm = 0;  // Euclidean; not finite if any element is not
    bool is_finite = true;
};

// Called for each owned subgroup in tile order, with its device and its index there.
using SubgroupVisit =
    std::function<void(csd::Device& device, std::size_t subgroup, shard::TileRange tiles)>;

// One per rank. Calls are collective and from the thread that calls MPI, unless stated otherwise. A
// step is: begin_step; put_gradient of all blocks, last first; finish_gradients; begin_update;
// accept_update; advance_update as parameters are needed; finish_update before the next begin_step;
// commit, if steps must survive a crash. To skip a step, do not begin its update. The update may
// begin before the first put_gradient: then devices take gradients as they become final, and
// cancel_update skips the step.
class StepPipeline {
public:
    // `devices`: this rank's, in the order of its copy's device map.
    StepPipeline(const mpi::Communicator& world, PipelineSettings settings,
                 std::vector<std::unique_ptr<csd::Device>> devices, trace::Traffic& traffic);

    // Sets how gradients are encoded for the owners, and how owners encode a tile's sum for their
    // devices (null: they pass payloads unchanged). Not collective, but the same on all ranks.
    void begin_step(const exchange::StepEncoding& encoding, const codec::Codec* handed = nullptr);

    // Where to write this rank's gradient of the block: fp32, in GPU memory if has_gpu(). Not
    // collective.
    std::span<float> gradient_space(std::size_t block);
    bool has_gpu() const { return gpu_gradients_.has_value(); }

    // Sends gradient_space(block) to the owners' devices. With a GPU, which still works on it, the
    // next call does.
    void put_gradient(std::size_t block);

    GradientFacts finish_gradients();

    // Starts to read the state of generation() for a begin_update() that follows or, if none does,
    // for nothing: then drop_read_ahead(). Not collective.
    void read_ahead(csd::ReadAhead order);
    void drop_read_ahead();

    // Starts to update the state from generation() to the next and to bring the new parameters of
    // this rank's copy into `vector`: see ParameterUpdate::begin().
    void begin_update(const csd::StepScalars& scalars, std::span<std::byte> vector,
                      std::function<void()> after);
    void accept_update();
    void cancel_update() { update_.cancel(); }
    bool is_updating() const { return update_.is_under_way(); }
    // On return the parameters before tile `end` are final.
    void advance_update(std::size_t end) { update_.advance(end); }
    void poll_update() { update_.poll(); }
    // Advances generation().
    UpdateTimes finish_update();

    // Makes the manifests name `step`, which every rank's devices must hold durably
    // (StateCommit::prepare). The next step's finish_gradients() waits for all ranks, so none
    // writes before all have committed.
    void commit(csd::StateCommit& log, const store::Commit& step);

    // Empties the devices' storage. Not collective.
    void reserve();

    // See ParameterUpdate.
    void gather(std::span<std::byte> vector) { update_.gather(vector); }
    void bring(std::span<std::byte> vector, std::span<const shard::TileRange> tiles) {
        update_.bring(vector, tiles);
    }
    codec::DeltaTally delta_tally() const { return update_.delta_tally(); }

    std::int64_t generation() const { return generation_; }
    // Call after the state was written from outside. Not collective.
    void set_generation(std::int64_t generation) { generation_ = generation; }

    // The ranks that hold a copy of the optimizer state together with this one.
    const mpi::Communicator& copy_ranks() const { return copy_ranks_; }

    // This rank's, in the order of its copy's device map.
    const std::vector<std::unique_ptr<csd::Device>>& devices() const { return devices_; }

    // What this rank feeds back; null without error feedback. Not collective.
    exchange::Residual* residual() { return scatter_.residual(); }
    // The ranks that hold a residual of the tile, ascending, and the one of them that takes the sum
    // of other ranks' residuals.
    std::vector<int> residual_ranks(std::size_t tile) const;
    int residual_heir(std::size_t tile) const;

    // Not collective.
    void visit_subgroups(const SubgroupVisit& visit);

private:
    std::optional<GradientGroup> gradient_group() const;
    std::optional<PayloadGroup> payload_group() const;
    exchange::ParameterGatherSettings gather_settings() const;
    void release_gradients();
    void put_payloads(std::size_t block);
    exchange::TileSink collect();
    void take_round();
    std::size_t device_of(std::size_t tile) const;
    void take_tile(const exchange::TilePayloads& of, exchange::OwnerSum& sum);

    const mpi::Communicator& world_;
    PipelineSettings settings_;
    const shard::Replica& copy_;  // that this rank's devices hold a part of
    mpi::Communicator copy_ranks_;
    std::vector<std::unique_ptr<csd::Device>> devices_;
    std::vector<shard::TileRange> rounds_;
    exchange::GradientScatter scatter_;
    ParameterUpdate update_;
    GradientAssembly assembly_;
    std::optional<GpuGradients> gpu_gradients_;
    std::optional<std::size_t> encoding_block_;  // on the GPU
    std::size_t final_from_ = 0;                 // gradients of tiles from here on were put
    ThreadPool& pool_;
    std::vector<exchange::OwnerSum> owner_sums_;  // one per thread of the pool
    std::vector<exchange::TilePayloads> taken_;   // of the round, ascending
    std::vector<double> squares_of_tile_;         // of all tiles; 0 outside the first copy
    std::int64_t generation_ = 0;
};

}  // namespace nearstep::offload
