// The optimizer step of all ranks: gradients out to the devices, update near storage, parameters
// in.
#pragma once

#include "codec/codec.hpp"
#include "csd/device.hpp"
#include "csd/state_commit.hpp"
#include "csd/transfer_handler.hpp"
#include "link/node_links.hpp"
#include "memory/buffer.hpp"
#include "mpi/communicator.hpp"
#include "mpi/exchange/delta_gather.hpp"
#include "mpi/exchange/gradient_scatter.hpp"
#include "mpi/exchange/owner_sum.hpp"
#include "mpi/exchange/parameter_gather.hpp"
#include "mpi/topology.hpp"
#include "offload/gpu_gradients.hpp"
#include "offload/gradient_assembly.hpp"
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

// A rank's parameter vector: all parameters; the same and shared by the ranks of its node; or, for
// good, those of its own tiles, and others while they are needed (see parameter_window.hpp).
enum class VectorKind { whole, shared_in_node, own_tiles };

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
    csd::HandlerKind handler = csd::HandlerKind::overlapped;
    csd::Delivery delivery = csd::Delivery::parameters;  // of the devices
    std::vector<ElementRange> blocks;                    // forward order
    const link::NodeLinks* links = nullptr;              // of the network; null: not shaped
    // Where gradients are written, added up over the group and encoded; not with error feedback.
    // None: on the host.
    std::optional<int> gpu = std::nullopt;
    nccl::Group* gpu_group = nullptr;  // the group's ranks; null: this one is a group by itself
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
// A step is: begin_step; put_gradient of all blocks, last first; finish_gradients; then update, or
// nothing to skip the step; then commit, where steps are to outlive a crash.
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

    // Takes the state from generation() to the next and brings the new parameters of all owners of
    // this rank's copy into `vector`, this rank's padded parameter vector; with deltas it holds
    // those of generation(), which gather() brought first.
    void update(const csd::UpdateScalars& scalars, std::span<std::byte> vector);

    // On return every rank's devices hold the state of `step` for good, and the manifests name it.
    // The next step's finish_gradients() waits for all ranks, so none writes before all are here.
    void commit(csd::StateCommit& log, const store::Commit& step);

    // Empties the devices' storage. Not collective.
    void reserve();

    // Brings all owners' parts of `vector`, already filled by each for its own tiles, to all ranks
    // of their copy, as they are, unless vectors have their own tiles only. Once before the first
    // update.
    void gather(std::span<std::byte> vector);

    // Brings these tiles, ascending, from the owners' vectors to all ranks of their copy.
    void bring(std::span<std::byte> vector, std::span<const shard::TileRange> tiles) {
        gather_.bring(vector, tiles);
    }

    // What this rank's devices delivered by deltas so far.
    codec::DeltaTally delta_tally() const;

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
    struct Place {
        std::size_t device = 0;    // of this rank
        std::size_t subgroup = 0;  // of the device
    };

    // A device's messages lie side by side, each in room for the largest.
    std::size_t message_room_bytes(std::size_t device) const;
    void gather_deltas(std::span<std::byte> vector);
    void meet_in_node();

    std::optional<GradientGroup> gradient_group() const;
    exchange::GatherSettings gather_settings() const;
    int first_device() const { return copy_.devices.first(copy_ranks_.rank()); }

    // Place of a subgroup of this rank.
    Place place_of(std::size_t subgroup) const;
    void put_payloads(std::size_t block);
    void take_tile(std::size_t tile, std::span<const std::span<const std::byte>> payloads);

    const mpi::Communicator& world_;
    PipelineSettings settings_;
    const shard::Copy& copy_;  // that this rank's devices hold a part of
    mpi::Communicator copy_ranks_;
    std::vector<std::unique_ptr<csd::Device>> devices_;
    std::vector<std::unique_ptr<csd::TransferHandler>> handlers_;
    std::vector<shard::TileRange> rounds_;
    exchange::GradientScatter scatter_;
    exchange::ParameterGather gather_;
    std::optional<exchange::DeltaGather> delta_gather_;
    std::vector<memory::Buffer> messages_;  // of each device, with deltas
    bool has_equal_copies_ = false;         // the ranks' vectors were the same once
    GradientAssembly assembly_;
    std::optional<GpuGradients> gpu_gradients_;
    std::optional<std::size_t> encoding_block_;  // on the GPU
    exchange::OwnerSum owner_sum_;
    std::vector<double> squares_of_tile_;  // of all tiles; others than the first copy's stay 0
    std::int64_t generation_ = 0;
};

}  // namespace nearstep::offload
