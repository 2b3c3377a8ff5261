// Shared by all exchanges between GPUs: whether ranks can use NCCL, and how it starts.
#pragma once

#include "config/engine_settings.hpp"
#include "mpi/communicator.hpp"
#include "mpi/nccl/group.hpp"
#include "mpi/nccl/watchdog.hpp"
#include "mpi/topology.hpp"

#include <optional>
#include <string>

namespace nearstep::engine {

// Why some group with several ranks cannot exchange between GPUs, as the end of a sentence; empty
// if all can. The same on all ranks. `gpu` is the one this rank would use. Collective over `world`.
std::string obstacle_in_groups(const mpi::Communicator& world, const mpi::Topology& groups,
                               std::optional<int> gpu);

// Starts NCCL between the GPUs of `ranks`, and the process's watchdog if it does not run yet.
// Collective over `ranks`.
void start_group(const mpi::Communicator& ranks, int gpu, const config::EngineSettings& settings,
                 std::optional<nccl::Watchdog>& watchdog, std::optional<nccl::Group>& group);

bool is_each_alone(const mpi::Topology& groups);

// The reason given with exchange.transport = "mpi".
constexpr const char* kTransportSaysSo = "exchange.transport says so";

// " (NCCL 2.28.9)".
std::string nccl_words();

}  // namespace nearstep::engine
