// The resources of one rank's run: its devices, links, memory and the pipeline between ranks. Step
// and State share it. Made and owned by Run.
#pragma once

#include "base/executor.hpp"
#include "base/fault_point.hpp"
#include "csd/state_commit.hpp"
#include "csd/state_format.hpp"
#include "engine/placement/placed_settings.hpp"
#include "engine/resources/parameter_reader.hpp"
#include "engine/restart/start.hpp"
#include "engine/route/gpu_transport.hpp"
#include "engine/route/gradient_route.hpp"
#include "engine/route/parameter_vector.hpp"
#include "memory/buffer.hpp"
#include "memory/gpu.hpp"
#include "mpi/communicator.hpp"
#include "mpi/topology.hpp"
#include "nearstep/layout.hpp"
#include "nearstep/options.hpp"
#include "offload/step_pipeline.hpp"
#include "shaping/clock.hpp"
#include "shaping/node_links.hpp"
#include "shard/ownership.hpp"
#include "store/storage.hpp"
#include "trace/run_facts.hpp"
#include "trace/traffic.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::engine {

struct Resources {
    // Opens and locks the state files without changing them. `world` outlives this. Collective.
    Resources(const mpi::Communicator& ranks, const Start& start, const Layout& tensors,
              Identity training, const EngineOptions& client);
    Resources(const Resources&) = delete;
    Resources& operator=(const Resources&) = delete;
    // Finishes an accepted update, which waits for other ranks as all calls do, and cancels any
    // other. Committed state stays intact. Not collective.
    ~Resources() = default;

    // Whether this rank computes gradients; a storage rank does not.
    bool computes() const { return world.rank() < config::computing_ranks(settings, world.size()); }
    // Parameters of other ranks are here only while they are needed.
    bool has_parts() const { return kind == offload::VectorKind::parts; }
    // Whether a checkpoint, which contains one copy of the state, has this rank's.
    bool is_in_first_copy() const { return owners.copy_of(world.rank()) == 0; }
    // Whether devices keep what a step's update needs in a log.
    bool keeps_updates() const { return is_durable_by_step() && settings.spare_places > 0; }
    // Whether a step is durable before its update begins. Where state is stored in turns, the log
    // is written beside the update.
    bool commits_early() const { return keeps_updates() && settings.logs == 1; }
    bool is_durable_by_step() const { return settings.csd.durability == config::Durability::step; }

    // Calls `work` for each subgroup of this rank with memory for its state. The pool's threads
    // handle several at once. Rethrows the first error. Not collective.
    using StateWork =
        std::function<void(const offload::OwnedSubgroup& of, const csd::StateArrays& state)>;
    void visit_states(Executor& workers, const StateWork& work) const;
    // Writes the rounded masters of a subgroup to the vector, with which a rank computes.
    void load_into_vector(const offload::OwnedSubgroup& of, const csd::StateArrays& state);
    // Does that with the masters of a tile as they are stored.
    void load_into_vector(std::size_t tile, const void* masters);
    // The state that devices hold, and that is read from now on, is of this generation.
    void go_on_from(std::int64_t generation);
    // Gives back the vector's memory of whole pages in the range. Any thread may call.
    void drop_parameters(shard::ElementRange range);
    // Flushes the devices, so that the manifests may name their state. Not collective.
    void prepare_commit();

    // The largest parameter vector of any rank now. A vector shared in a node counts in full.
    std::size_t vector_bytes() const;
    // Bytes written to each of facts.devices so far, ordered by rank, then device.
    std::vector<std::uint64_t> written_bytes() const;

    const mpi::Communicator& world;
    PlacedSettings settings;
    Layout layout;
    Identity identity;
    EngineOptions options;
    int set;  // of the state files' names: Decision::set
    FaultPoints faults;
    trace::Timeline* timeline;
    std::unique_ptr<store::Storage> storage;  // null: the operating system's
    shaping::Clock clock;
    std::unique_ptr<shaping::NodeLinks> links;  // null: no rate limits
    mpi::Topology nodes;
    shard::Ownership owners;
    const shard::Replica& copy;  // this rank's
    GradientRoute route;
    ParameterGroups parameters;
    trace::Traffic traffic;
    offload::VectorKind kind = {};
    memory::Buffer vector;       // the padded parameter vector
    memory::PinnedRange pinned;  // pins the vector for a GPU
    std::optional<GpuTransport> gpu_transport;
    csd::StateCommit log;               // used by the pipeline's updates
    Executor pool{pool_threads() - 1};  // used by the pipeline
    // Used by the devices. It leaves the CPU to the threads that compute or feed a GPU.
    Executor beside{pool_threads(), Executor::Priority::background};
    std::unique_ptr<offload::StepPipeline> pipeline;
    std::optional<ParameterReader> reader;  // with ParameterHome::state
    std::map<int, std::string> places;      // see store::Manifest::places
    std::string threads;                    // see store::Manifest::threads
    std::vector<std::string> binding;       // see bind_near_devices()
    trace::RunFacts facts;

private:
    void place_others();
    void make_groups();
    std::vector<std::unique_ptr<csd::Device>> own_devices(bool has_gpu, bool updates_on_gpu);
    void make_pipeline();
    void make_reader();
    void make_facts();
};

}  // namespace nearstep::engine
