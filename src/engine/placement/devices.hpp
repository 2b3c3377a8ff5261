// The devices of a run: how many there are, where their files lie, and how the mode uses them.
#pragma once

#include "base/dtype.hpp"
#include "config/engine_settings.hpp"
#include "csd/device.hpp"
#include "csd/group_map.hpp"
#include "csd/state_volume.hpp"
#include "csd/transfer_handler.hpp"
#include "engine/placement/placed_settings.hpp"
#include "engine/route/gradient_route.hpp"
#include "mpi/communicator.hpp"
#include "mpi/topology.hpp"
#include "nearstep/options.hpp"
#include "shaping/node_links.hpp"
#include "shard/ownership.hpp"
#include "store/provenance.hpp"
#include "store/storage.hpp"
#include "store/storage_folder.hpp"
#include "trace/timeline.hpp"
#include "trace/traffic.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nearstep::engine {

// Ranks of a node take consecutive devices of csd.path. Where they divide the folders of their
// host they do so evenly, lower ranks first, and a rank has one device at least; if there are
// storage ranks, only these do. Settles the placement. Collective; throws ConfigError on all ranks
// alike, also if the Slurm job has no devices, or not on the host of some rank.
PlacedSettings place_devices(const mpi::Communicator& world, const config::EngineSettings& settings,
                             const Grant& grant);

// Ranks that share memory, or pieces of exchange.ranks_per_node of them. Each storage rank is a
// node of its own. Collective.
mpi::Topology discover_nodes(const mpi::Communicator& world,
                             const config::EngineSettings& settings);

// Speed of each device of all ranks, as config::device_speeds() until speeds are resolved.
std::vector<double> speeds_of_devices(const PlacedSettings& settings, int ranks);

// The placement for the ranks of these nodes. Throws ConfigError; see config::resolved_placement().
config::Placement placement_on(const mpi::Topology& nodes, const config::EngineSettings& settings);

// The ranks of each copy of the optimizer state.
mpi::Topology copies_of(const config::EngineSettings& settings, const mpi::Topology& nodes);

// The copy held by `copy_ranks`, out of `ranks` in all. In mode base a rank updates on its host and
// uses its plain devices as one striped store, so there is one owner per rank. Throws ConfigError
// if these ranks have no device.
shard::Replica make_copy(const PlacedSettings& settings, std::size_t parameters,
                         const std::vector<int>& copy_ranks, int ranks);

shard::Ownership make_ownership(const PlacedSettings& settings, std::size_t parameters,
                                const mpi::Topology& nodes);

// The subgroups of the first device that has the most, in any copy of the state.
const std::vector<shard::Subgroup>& largest_device(const shard::Ownership& owners);

csd::HandlerKind handler_kind(config::Mode mode);

csd::Delivery delivery(const config::EngineSettings& settings, ParameterHome parameters);

// Whether a step's update overlaps the next step's forward. It does not in base and su, which
// reproduce systems that run them one after the other.
bool overlaps_steps(config::Mode mode);

// Returns the tier of each of the rank's devices, in their order.
std::vector<config::Tier> tiers_of(const config::EngineSettings& settings, int rank, int ranks);

// The rank's state files, one per device. `set` is the set of names (see store/names.hpp). That of
// a device in GPU memory is never made: its state is as missing as that of a drive that was lost.
std::vector<std::string> state_files(const PlacedSettings& settings, int rank, int ranks,
                                     int set = 0);

// The logs of a device's state file, by their numbers; none where each subgroup has two places.
std::vector<std::string> log_files(const PlacedSettings& settings, const std::string& state_file,
                                   int local);

// The rank's state files and logs with the bytes that each will take. A rank without devices has
// its manifest alone. `copy` is the rank's copy of the state. `set` as for state_files().

std::vector<store::PlannedFile> planned_files(const PlacedSettings& settings, int rank, int ranks,
                                              const shard::Replica& copy, int set = 0);

// The state of each of the rank's devices in its copy, in device order. `files` are their files in
// the same order; in mode base all files belong to one device.
std::vector<csd::StateVolumeSettings> state_volumes(const PlacedSettings& settings, int rank,
                                                    const shard::Replica& copy,
                                                    const std::vector<std::string>& files);

// The file that says what the rank's state files hold. It lies beside the first of them.
std::string manifest_path(const PlacedSettings& settings, int rank, int set = 0);
// The two files beside the manifest that hold a program's own state: see store::ProgramStatePair.
std::array<std::string, 2> program_state_paths(const PlacedSettings& settings, int rank, int set);

// The rank's state files and manifest.
store::RankFiles files_of_rank(const PlacedSettings& settings, const mpi::Communicator& world,
                               int set = 0);

// Objects that all devices of the rank share. The pointers outlive the devices.
struct DeviceSurroundings {
    Dtype dtype = Dtype::bf16;            // of the parameters
    store::Storage* storage = nullptr;    // see store::File
    shaping::NodeLinks* links = nullptr;  // null: no rate limits
    trace::Timeline* timeline = nullptr;  // null: no tracing
    int set = 0;                          // of file names
    Executor* executor = nullptr;         // does the work of emulated devices
    int ranks_beside = 0;  // of the node, this one included; 0: no memory is spent to read ahead
    std::optional<int> gpu = std::nullopt;      // this rank's, if it may update state
    std::optional<int> own_gpu = std::nullopt;  // the same, if its memory may hold state
    bool fills_gpu = false;                     // its free memory may hold state that is read ahead
    csd::GroupMap groups = {};                  // of the parameter vector
    ParameterHome parameters = ParameterHome::vector;
    std::vector<std::string> files = {};  // empty: the rank's state files
};

// Makes this rank's devices, in the order of its copy's device map. Files are named after the rank
// and the device. The codecs in `route` outlive the devices. Throws like csd::make_cpu_device.
std::vector<std::unique_ptr<csd::Device>> make_devices(
    const PlacedSettings& settings, const mpi::Communicator& world, const shard::Ownership& owners,
    const GradientRoute& route, const DeviceSurroundings& around, trace::Traffic& traffic);

}  // namespace nearstep::engine
