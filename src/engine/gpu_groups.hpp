// What the exchanges of a run between GPUs have in common: whether ranks can, and their start.
#pragma once

#include "config/engine_settings.hpp"
#include "mpi/communicator.hpp"
#include "mpi/nccl/group.hpp"
#include "mpi/nccl/watchdog.hpp"
#include "mpi/topology.hpp"

#include <optional>
#include <string>

namespace nearstep::engine {

// Why some of `groups` with several ranks cannot exchange between GPUs, as the end of a sentence:
// the same on all ranks. Empty: they all can. `gpu`: the one this rank would use, if any.
// Collective over `world`.
std::string obstacle_in_groups(const mpi::Communicator& world, const mpi::Topology& groups,
                               std::optional<int> gpu);

// Starts NCCL between the GPUs of `ranks`, and the process's watchdog if it was not. Collective
// over `ranks`.
void start_group(const mpi::Communicator& ranks, int gpu, const config::EngineSettings& settings,
                 std::optional<nccl::Watchdog>& watchdog, std::optional<nccl::Group>& group);

bool is_each_alone(const mpi::Topology& groups);

// Why GPUs are not asked at all where exchange.transport = "mpi".
constexpr const char* kTransportSaysSo = "exchange.transport says so";

// " (NCCL 2.28.9)".
std::string nccl_words();

}  // namespace nearstep::engine
