// The devices of a run: how many, where their files lie, and how the mode uses them.
#pragma once

#include "codec/codec.hpp"
#include "config/run.hpp"
#include "csd/device.hpp"
#include "csd/transfer_handler.hpp"
#include "link/node_links.hpp"
#include "mpi/communicator.hpp"
#include "shard/partition.hpp"
#include "store/folder.hpp"
#include "store/storage.hpp"
#include "trace/traffic.hpp"

#include <memory>
#include <string>
#include <vector>

namespace nearstep::train {

// In mode base a rank updates on its host, with its plain devices as one striped store: one owner
// per rank.
shard::DeviceMap device_map(const config::Run& run, int ranks);

shard::Partition make_partition(const config::Run& run, std::size_t parameters, int ranks);

// The gradient codecs of a run.
struct Codecs {
    std::unique_ptr<codec::Codec> codec;
    std::unique_ptr<codec::Codec> warmup;  // dense, of the first steps; null: there are none

    std::size_t most_payload_bytes() const;
};

Codecs make_codecs(const config::Run& run);

csd::HandlerKind handler_kind(config::Mode mode);

csd::Delivery delivery(const config::Run& run);

// The files that the rank's state lies in.
std::vector<std::string> state_files(const config::Run& run, int rank, int ranks);

// The same with the bytes that each will take.
std::vector<store::PlannedFile> planned_files(const config::Run& run, int rank, int ranks,
                                              std::size_t parameters);

// The run with csd.places set for this rank: the devices of the ranks of a node follow each other
// in csd.path. `granted`: as config::places_of_devices takes it. Collective; throws ConfigError on
// all ranks alike.
config::Run place_devices(const mpi::Communicator& world, const config::Run& run,
                          const std::string& granted);

// "ranks=2 devices=1,1 ...": all that fixes where each tile's state lies. State files fit a run if
// the lines are equal.
std::string layout_line(const config::Run& run, int ranks, const shard::Partition& partition);

// The file that says what the rank's state files hold; beside the first of them.
std::string manifest_path(const config::Run& run, int rank);

// What lies under the devices and outlives them.
struct DeviceSurroundings {
    store::Storage* storage = nullptr;  // as for a store::File
    link::NodeLinks* links = nullptr;   // null: not shaped
};

// This rank's devices, in the order of the device map. Files are named after the rank and the
// device. `sources`: payloads per tile; `codecs` outlive them. Throws as csd::make_emulated_device.
std::vector<std::unique_ptr<csd::Device>> make_devices(
    const config::Run& run, const mpi::Communicator& world, const shard::Partition& partition,
    const shard::DeviceMap& map, const Codecs& codecs, int sources,
    const DeviceSurroundings& around, trace::Traffic& traffic);

}  // namespace nearstep::train
