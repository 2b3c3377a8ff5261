// The subcommands of the program.
#pragma once

#include "mpi/communicator.hpp"

#include <CLI/CLI.hpp>

#include <functional>
#include <string>
#include <vector>

namespace nearstep::app {

// What the chosen subcommand does, set when the command line was parsed. Collective; throws
// ConfigError.
using Action = std::function<void(const mpi::Communicator& world)>;

// For a subcommand that rank 0 does alone.
Action on_rank_0(std::function<void()> work);

// Where a run's settings come from, on the command line.
struct RunArguments {
    std::string config;
    std::string site;
    std::vector<std::string> overrides;
};

// config, --site and --set, with all keys in the help.
void add_run_arguments(CLI::App& command, RunArguments& arguments);

// Adds all subcommands with their options; the one that is given sets `action`.
void add_commands(CLI::App& program, Action& action);

// bench and its own subcommands; a part of add_commands.
void add_bench(CLI::App& program, Action& action);

// plan; a part of add_commands.
void add_plan(CLI::App& program, Action& action);

}  // namespace nearstep::app
