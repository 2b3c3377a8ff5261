// The commands hosts, granted and preflight, which launch/mpirun and launch/slurm call.
#include "app/commands.hpp"
#include "base/digest.hpp"
#include "base/error.hpp"
#include "config/hosts.hpp"
#include "config/load.hpp"
#include "config/slurm_grant.hpp"
#include "doctor/host_check.hpp"

#include <nlohmann/json.hpp>

#include <iostream>
#include <memory>
#include <string>
#include <utility>

namespace nearstep::app {

namespace {

struct LaunchArguments {
    RunArguments run;
    int ranks = 0;
    int host = 0;
    std::string granted;
    bool takes_unfinished = false;
    doctor::Script script;
};

int ranks_of(const LaunchArguments& arguments, const config::RunSettings& run) {
    return arguments.ranks > 0 ? arguments.ranks : config::ranks_of_site(run);
}

// A script has no config, and text and batches of its own.
config::RunSettings read_launched(const mpi::Communicator& world,
                                  const LaunchArguments& arguments) {
    const bool is_script = !arguments.script.path.empty();
    if (is_script != arguments.run.config.empty()) {
        throw ConfigError("Name either a config or, with --script, a script of yours.");
    }
    config::Sources sources = read_sources(world, arguments.run);
    sources.needs_data = !is_script;
    config::RunSettings run = config::parse(sources);
    if (is_script) {
        run.train.global_batch = ranks_of(arguments, run);
    }
    return run;
}

// A JSON list, since a word may have blanks.
std::string list_of(const std::vector<std::string>& words) { return nlohmann::json(words).dump(); }

// Prints a line for each field of the Plan in python/nearstep_run/_sites.py, and for each host.
void print_hosts(const LaunchArguments& arguments, const config::RunSettings& run) {
    const int ranks = ranks_of(arguments, run);
    config::validate_for_ranks(run, ranks);
    const std::vector<config::HostPart> parts = config::plan_hosts(run, ranks);
    std::cout << "site " << run.site << "\nranks " << ranks << "\nstorage_ranks "
              << run.csd.storage_ranks << "\nstorage_hosts "
              << (run.hosts.storage.empty() ? 0 : run.csd.storage_ranks) << "\ninterface "
              << run.hosts.interface << "\nremote " << run.hosts.remote << "\nhead "
              << run.hosts.head << "\ncores_per_rank " << run.hosts.cores_per_rank
              << "\nnetwork_gb_s " << run.link.network_gb_s << "\nmpirun_options "
              << list_of(run.hosts.mpirun_options) << "\nsbatch_options "
              << list_of(run.hosts.sbatch_options) << "\nstorage_sbatch_options "
              << list_of(run.hosts.storage_sbatch_options) << "\n";
    for (const config::HostPart& part : parts) {
        std::cout << "host " << (part.name.empty() ? "." : part.name) << ' ' << part.ranks << ' '
                  << part.devices << "\n";
    }
}

void print_facts(const LaunchArguments& arguments, const config::RunSettings& run) {
    const int ranks = ranks_of(arguments, run);
    config::validate_for_ranks(run, ranks);
    const std::vector<config::HostPart> parts = config::plan_hosts(run, ranks);
    if (arguments.host < 0 || std::cmp_greater_equal(arguments.host, parts.size())) {
        throw ConfigError(text("There is no host ", arguments.host, " among the ", parts.size(),
                               " that ", ranks, " ranks take: count from 0."));
    }
    const config::HostPart& part = parts[static_cast<std::size_t>(arguments.host)];
    const doctor::HostCheck facts =
        arguments.script.path.empty()
            ? doctor::check_host(run, ranks, part, arguments.granted,
                                 arguments.takes_unfinished ? doctor::Unfinished::taken
                                                            : doctor::Unfinished::refused)
            : doctor::check_host_of_script(run, ranks, part, arguments.script);
    std::cout << "commit " << facts.commit << "\nprogram_xxh3 " << to_hex(facts.program_digest)
              << "\ndata_xxh3 " << (facts.data_digest ? to_hex(*facts.data_digest) : "none")
              << (facts.package.empty() ? "" : "\npackage_sha256 " + facts.package) << "\ntime_us "
              << facts.time_us << "\nmachine " << facts.machine << "\ncores " << facts.cores << "\n"
              << (facts.note.empty() ? "" : "note " + facts.note + "\n")
              << (facts.storage.empty() ? "" : "storage " + facts.storage + "\n");
}

// Prints "node1=0-1 node2=2,3".
void print_granted() {
    const std::vector<config::HostGrant> grants = config::ask_slurm_for_grants();
    if (grants.empty()) {
        throw ConfigError("This is no job whose devices Slurm knows: start it with launch/slurm.");
    }
    const char* before = "";
    for (const config::HostGrant& grant : grants) {
        std::cout << std::exchange(before, " ") << grant.host << '=' << grant.devices;
    }
    std::cout << "\n";
}

void add_launch_command(CLI::App& command, Action& action, std::shared_ptr<LaunchArguments> shared,
                        void (*work)(const LaunchArguments&, const config::RunSettings&)) {
    add_run_arguments(command, shared->run, ConfigFile::optional);
    CLI::Option* script =
        command.add_option("--script", shared->script.path,
                           "a script that uses nearstep from Python, in place of a config");
    command.add_option("--python", shared->script.python, "that runs the script")
        ->needs(script)
        ->default_val("python3");
    command
        .add_option("--ranks", shared->ranks, "ranks of the run; default: all that the site takes")
        ->check(CLI::Range(1, kMostCount));
    command.callback([shared = std::move(shared), work, &action] {
        action = [shared, work](const mpi::Communicator& world) {
            const config::RunSettings run = read_launched(world, *shared);
            on_rank_0([&] { work(*shared, run); })(world);
        };
    });
}

}  // namespace

void add_launch(CLI::App& program, Action& action) {
    CLI::App& hosts = *program.add_subcommand(
        "hosts",
        "Print which ranks a run puts on which host of its site, for launch/mpirun. Example:\n"
        "  nearstep hosts configs/tiny.toml --site cluster/virtual-hosts --set data.train=FILE");
    add_launch_command(hosts, action, std::make_shared<LaunchArguments>(), print_hosts);

    CLI::App& granted = *program.add_subcommand(
        "granted",
        "Print the devices that Slurm gave to the hosts of the job that this is in, as positions "
        "in csd.path, for launch/slurm_job. Example:\n  nearstep granted");
    granted.callback([&action] { action = on_rank_0(print_granted); });

    CLI::App& preflight = *program.add_subcommand(
        "preflight",
        "Check that this host has what a run needs: text, folders, space, no unfinished run, "
        "network interface; or what a script needs: its Python, network interface. "
        "Examples:\n  nearstep preflight configs/tiny.toml --site cluster/localhost --set "
        "data.train=FILE\n  nearstep preflight --script train.py --python .venv/bin/python");
    const auto arguments = std::make_shared<LaunchArguments>();
    preflight.add_option("--host", arguments->host, "which of the hosts this one is, from 0")
        ->check(CLI::Range(0, kMostCount));
    preflight
        .add_option("--granted-devices", arguments->granted,
                    "positions in csd.path that a batch system gave this host, as in 0-1,3")
        ->envname("NEARSTEP_CSDS");
    preflight.add_flag("--takes-unfinished", arguments->takes_unfinished,
                       "the run goes on from an unfinished one, or replaces it");
    add_launch_command(preflight, action, arguments, print_facts);
}

}  // namespace nearstep::app
