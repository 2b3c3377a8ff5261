// The devices of a run: how many, where their files lie, and how the mode uses them.
#pragma once

#include "codec/codec.hpp"
#include "config/run.hpp"
#include "csd/device.hpp"
#include "csd/transfer_handler.hpp"
#include "mpi/communicator.hpp"
#include "shard/partition.hpp"
#include "trace/traffic.hpp"

#include <memory>
#include <vector>

namespace nearstep::train {

// In mode base a rank updates on its host, with its plain devices as one striped store: one owner
// per rank.
shard::DeviceMap device_map(const config::Run& run, int ranks);

shard::Partition make_partition(const config::Run& run, std::size_t parameters, int ranks);

std::unique_ptr<codec::Codec> make_codec(const config::Run& run);

csd::HandlerKind handler_kind(config::Mode mode);

// This rank's devices, in the order of the device map. Files are named after the rank and the
// device. `sources`: payloads per tile. Throws as csd::make_emulated_device.
std::vector<std::unique_ptr<csd::Device>> make_devices(
    const config::Run& run, const mpi::Communicator& world, const shard::Partition& partition,
    const shard::DeviceMap& map, const codec::Codec& codec, int sources, trace::Traffic& traffic);

}  // namespace nearstep::train
