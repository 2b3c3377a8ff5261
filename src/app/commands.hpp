// The subcommands of the program.
#pragma once

#include "config/run.hpp"
#include "mpi/communicator.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <string>
#include <vector>

namespace nearstep::app {

// What the chosen subcommand does, set when the command line was parsed. Collective; throws
// ConfigError.
using Action = std::function<void(const mpi::Communicator& world)>;

// For a subcommand that rank 0 does alone.
Action on_rank_0(std::function<void()> work);

// Does `work` and writes what it returns to the file `json`, unless that is empty; a file that
// cannot be written is refused before the work. Throws ConfigError.
void write_result_of(const std::function<nlohmann::json()>& work, const std::string& json);

// Does what a command line says; its first word is the program's name. Returns the exit code.
// Collective; throws ConfigError.
int run_command(const mpi::Communicator& world, int argc, const char* const* argv);

// Where a run's settings come from, on the command line.
struct RunArguments {
    std::string config;
    std::string site;
    std::vector<std::string> overrides;
};

enum class ConfigFile { required, optional };

void add_run_arguments(CLI::App& command, RunArguments& arguments,
                       ConfigFile config = ConfigFile::required);

// Rank 0 reads the files, all ranks parse the same text. Collective; throws ConfigError.
config::Run read_run(const mpi::Communicator& world, const RunArguments& arguments);

// hosts and preflight, which the launchers call; a part of run_command.
void add_launch(CLI::App& program, Action& action);

// bench and its own subcommands; a part of run_command.
void add_bench(CLI::App& program, Action& action);

// plan; a part of run_command.
void add_plan(CLI::App& program, Action& action);

// report; a part of run_command.
void add_report(CLI::App& program, Action& action);

}  // namespace nearstep::app
