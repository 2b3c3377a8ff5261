// The subcommands of the program.
#pragma once

#include "base/output_file.hpp"
#include "config/load.hpp"
#include "config/run_settings.hpp"
#include "mpi/agreement.hpp"
#include "mpi/communicator.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <string>
#include <vector>

namespace nearstep::app {

// The work of the chosen subcommand, set when the command line is parsed. Collective; throws
// ConfigError.
using Action = std::function<void(const mpi::Communicator& world)>;

// Most of what an option counts: ranks, hosts, seconds.
inline constexpr int kMostCount = 1'000'000'000;

// Returns a validator of a number in this range. NaN is refused, which CLI::Range lets pass.
CLI::Validator number_in(double least, double most);
CLI::Validator not_empty();

// Wraps work that only rank 0 does.
Action on_rank_0(std::function<void()> work);

// An indented text of a result, and a line per row of an array.
std::string indented(const nlohmann::json& result);
std::string lines_of(const nlohmann::json& rows);

// Runs `work` and writes its result to the file. Checks that it can be written before the work.
// Throws ConfigError.
void write_result_of(const std::function<std::string()>& work, const std::string& path);
// Runs `work` on every rank; rank 0 writes its result. Collective.
void write_result_of(const mpi::Communicator& world, const std::function<std::string()>& work,
                     const std::string& path);

// Runs a command line, whose first word is the program's name. Returns the exit code. Collective;
// throws ConfigError.
int run_command(const mpi::Communicator& world, int argc, const char* const* argv);

// The command-line arguments that select a run's settings.
struct RunArguments {
    std::string config;
    std::string site;
    std::vector<std::string> overrides;
};

enum class ConfigFile { required, optional };

void add_run_arguments(CLI::App& command, RunArguments& arguments,
                       ConfigFile config = ConfigFile::required);

// The files of any run, which no result replaces: its state and its checkpoints.
std::vector<NamedPath> files_of_runs();

// The files that the command reads: the config, the site, the text, model and calibration of `run`,
// and the files of any run.
std::vector<NamedPath> inputs_of(const config::Sources& sources, const config::RunSettings& run);

// Reads the config, the site and, if model.from is a folder, its config.json. Throws ConfigError.
config::Sources read_sources(const RunArguments& arguments);

// Rank 0 reads the files, and all ranks get the same text. Collective; throws ConfigError, also if
// the command lines of ranks differ in what a run has once: in settings, or in `options`.
config::Sources read_sources(const mpi::Communicator& world, const RunArguments& arguments,
                             mpi::NamedValues options = {});

// Rank 0 reads the files and all ranks parse the same text. Collective; throws ConfigError.
config::RunSettings read_run(const mpi::Communicator& world, const RunArguments& arguments);

// Adds hosts and preflight, which the launchers call.
void add_launch(CLI::App& program, Action& action);

// Adds bench and its subcommands.
void add_bench(CLI::App& program, Action& action);

void add_doctor(CLI::App& program, Action& action);

// Adds plan and suggest.
void add_plan(CLI::App& program, Action& action);
void add_suggest(CLI::App& program, Action& action);

// Shows `report` in the help; run_report() runs it.
void add_report(CLI::App& program, Action& action);

// Whether the command line is of `report`, which is a Python program and uses no MPI.
bool is_report(int argc, const char* const* argv);

// Becomes that program on rank 0. Returns an exit code if there is nothing to run.
int run_report(int argc, char** argv);

}  // namespace nearstep::app
