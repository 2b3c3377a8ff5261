// The optimizer step of all ranks: gradients out to the devices, update near storage, parameters
// in.
#pragma once

#include "base/team.hpp"
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
    std::size_t most_payload_bytes = 0;   // of the codecs that begin_step() will name
    bool has_error_feedback = false;
    Dtype dtype = Dtype::bf16;  // of parameters and dense gradients
    mpi::Topology groups;       // of the scatter
    mpi::Topology nodes;
    VectorKind vector = VectorKind::whole;
    bool meets_in_node = false;  // as in UpdateSettings
    csd::HandlerKind handler = csd::HandlerKind::overlapped;
    csd::Delivery delivery = csd::Delivery::parameters;  // of the devices
    std::vector<ElementRange> blocks;                    // forward order
    const link::NodeLinks* links = nullptr;              // of the network; null: not shaped
    Team* team = nullptr;  // that decodes gradients and hands them to devices
    // Where gradients are written, added up over the group and encoded; not with error feedback.
    // None: on the host.
    std::optional<int> gpu = std::nullopt;
    CUstream_st* gradient_stream = nullptr;  // that they are written in; null: the default stream
    nccl::Group* gpu_group = nullptr;  // the group's ranks; null: this one is a group by itself
    // All ranks, where all have GPUs and payloads go from GPU to GPU: not with copies of the state,
    // nor with links. Null: through host memory.
    nccl::Group* payload_ranks = nullptr;
};

// Of the decoded sum over all ranks, loss scale included; the same on all ranks, whatever the
// layout.
struct GradientFacts {
    double norm = 0;  // Euclidean; not finite if any element is not
    bool is_finite = true;
};

// Called with each owned subgroup, in the order of its tiles: its device and its number there.
using SubgroupVisit =
    std::function<void(csd::Device& device, std::size_t subgroup, shard::TileRange tiles)>;

// One per rank; all calls are collective unless they say otherwise, from the thread that calls MPI.
// A step is: begin_step; put_gradient of all blocks, last first; finish_gradients; then
// begin_update, accept_update, advance_update as parameters are needed, and finish_update before
// the next begin_step, or nothing to skip the step; then commit, where steps are to outlive a
// crash. The update may begin before the first put_gradient: then devices take what is final
// meanwhile, and to skip the step is to cancel_update.
class StepPipeline {
public:
    // `devices`: this rank's, in the order of its copy's device map.
    StepPipeline(const mpi::Communicator& world, PipelineSettings settings,
                 std::vector<std::unique_ptr<csd::Device>> devices, trace::Traffic& traffic);

    // How the step's gradients are encoded for the owners, and, unless these hand their devices the
    // payloads as they come, how they encode a tile's sum. Not collective, but the same on all
    // ranks.
    void begin_step(const exchange::StepEncoding& encoding, const codec::Codec* handed = nullptr);

    // Where this rank's gradient of the block goes, fp32: memory of the GPU if has_gpu(). Not
    // collective.
    std::span<float> gradient_space(std::size_t block);
    bool has_gpu() const { return gpu_gradients_.has_value(); }

    // Sends what lies in gradient_space(block) to the owners' devices; from a GPU, which is still
    // at work on it, one call later.
    void put_gradient(std::size_t block);

    GradientFacts finish_gradients();

    // Begins to take the state from generation() to the next and to bring the new parameters of all
    // owners of this rank's copy into `vector`, as ParameterUpdate::begin() says.
    void begin_update(const csd::StepScalars& scalars, std::span<std::byte> vector,
                      std::function<void()> after);
    void accept_update();
    void cancel_update() { update_.cancel(); }
    bool is_updating() const { return update_.is_under_way(); }
    // The parameters before tile `end` are final on return.
    void advance_update(std::size_t end) { update_.advance(end); }
    void poll_update() { update_.poll(); }
    // From here on generation() is the next.
    UpdateTimes finish_update();

    // Once every rank's devices hold the state of `step` for good (StateCommit::prepare): on return
    // the manifests name it. The next step's finish_gradients() waits for all ranks, so none writes
    // before all are here.
    void commit(csd::StateCommit& log, const store::Commit& step);

    // Empties the devices' storage. Not collective.
    void reserve();

    // As ParameterUpdate has them.
    void gather(std::span<std::byte> vector) { update_.gather(vector); }
    void bring(std::span<std::byte> vector, std::span<const shard::TileRange> tiles) {
        update_.bring(vector, tiles);
    }
    codec::DeltaTally delta_tally() const { return update_.delta_tally(); }

    std::int64_t generation() const { return generation_; }
    // After the state was written from outside. Not collective.
    void set_generation(std::int64_t generation) { generation_ = generation; }

    // The ranks that hold a copy of the optimizer state together with this one.
    const mpi::Communicator& copy_ranks() const { return copy_ranks_; }

    // This rank's, in the order of its copy's device map.
    const std::vector<std::unique_ptr<csd::Device>>& devices() const { return devices_; }

    // What this rank feeds back; null without error feedback. Not collective.
    exchange::Residual* residual() { return scatter_.residual(); }
    // The ranks that hold a residual of the tile, ascending; and the one of them that takes the sum
    // of what other ranks held.
    std::vector<int> residual_ranks(std::size_t tile) const;
    int residual_heir(std::size_t tile) const;

    // Not collective.
    void visit_subgroups(const SubgroupVisit& visit);

private:
    std::optional<GradientGroup> gradient_group() const;
    std::optional<PayloadGroup> payload_group() const;
    exchange::GatherSettings gather_settings() const;
    void release_gradients();
    void put_payloads(std::size_t block);
    exchange::TileSink collect();
    void take_round();
    std::size_t device_of(std::size_t tile) const;
    void take_tile(const exchange::TilePayloads& of, exchange::OwnerSum& sum);

    const mpi::Communicator& world_;
    PipelineSettings settings_;
    const shard::Copy& copy_;  // that this rank's devices hold a part of
    mpi::Communicator copy_ranks_;
    std::vector<std::unique_ptr<csd::Device>> devices_;
    std::vector<shard::TileRange> rounds_;
    exchange::GradientScatter scatter_;
    ParameterUpdate update_;
    GradientAssembly assembly_;
    std::optional<GpuGradients> gpu_gradients_;
    std::optional<std::size_t> encoding_block_;  // on the GPU
    std::size_t final_from_ = 0;                 // the gradients of tiles from here on were put
    Team& team_;
    std::vector<exchange::OwnerSum> owner_sums_;  // of each member of the team
    std::vector<exchange::TilePayloads> taken_;   // of the round, ascending
    std::vector<double> squares_of_tile_;  // of all tiles; others than the first copy's stay 0
    std::int64_t generation_ = 0;
};

}  // namespace nearstep::offload
