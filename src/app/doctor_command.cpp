// The command doctor. Used by commands.cpp.
#include "app/commands.hpp"
#include "base/error.hpp"
#include "base/machine.hpp"
#include "base/number_list.hpp"
#include "bench/csd_bench.hpp"
#include "config/load.hpp"
#include "doctor/doctor.hpp"
#include "doctor/reached_hosts.hpp"
#include "doctor/site_text.hpp"
#include "doctor/system.hpp"
#include "locality/machine_nodes.hpp"
#include "memory/gpu.hpp"
#include "model/compute_device.hpp"
#include "model/gpu_peak.hpp"
#include "mpi/topology.hpp"
#include "store/drive.hpp"
#include "store/storage_folder.hpp"

#include <nlohmann/json.hpp>

#include <sys/utsname.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>

namespace nearstep::app {

namespace {

namespace fs = std::filesystem;

struct DoctorArguments {
    RunArguments run;
    std::string json;
    std::vector<std::string> site;  // the folder of --write-site and hosts; empty: none is written
    bool prints_findings = false;
};

// Finds what computes: the GPUs if PyTorch finds some, else the CPU in the host's memory.
void find_compute(doctor::HostFacts& facts) {
    const model::ComputeDevice device = model::choose_device(config::Processor::automatic, 0);
    if (!device.is_gpu() || memory::gpus() == 0) {
        config::ModelSettings model;
        facts.operations = model::measure_product_rate({}, model::compute_format(model));
        facts.gpu_memory = facts.memory;
        facts.gpu_memory_rate = facts.gpu_link = facts.memory_rate;
        return;
    }
    memory::use_gpu(*device.gpu);
    facts.gpus = memory::gpus();
    facts.gpu = memory::name_of_gpu(*device.gpu);
    facts.operations = model::peak_operations(facts.gpu, Dtype::bf16).value_or(0);
    facts.gpu_memory = static_cast<double>(memory::room_of_gpu().total_bytes);
    facts.gpu_memory_rate = model::measure_memory_rate(device);
    facts.gpu_link = model::measure_link_rate(device);
}

// The number of the node at that place.
std::optional<int> number_of(const locality::MachineNodes& machine, std::optional<int> place) {
    return place ? std::optional(machine.nodes()[static_cast<std::size_t>(*place)].number)
                 : std::nullopt;
}

// Adds which NUMA node each GPU, drive and adapter is near.
void find_nodes(doctor::HostFacts& facts) {
    const locality::MachineNodes machine;
    facts.nodes.clear();
    for (const locality::NumaNode& node : machine.nodes()) {
        facts.nodes.push_back(node.number);
    }
    for (int gpu = 0; gpu < facts.gpus; ++gpu) {
        facts.gpu_nodes.push_back(
            number_of(machine, machine.node_of_gpu(memory::address_of_gpu(gpu))));
    }
    for (doctor::DriveFacts& drive : facts.drives) {
        drive.node = number_of(machine, machine.node_of_drive(drive.device));
    }
    for (const locality::Adapter& adapter : machine.adapters()) {
        facts.adapters.push_back({adapter.name, number_of(machine, adapter.node)});
    }
}

doctor::DriveFacts find_drive(const std::string& folder) {
    doctor::DriveFacts facts{.folder = folder};
    const std::string present = store::nearest_present(folder);
    const store::Drive drive = store::drive_of(present);
    facts.device = drive.name;
    facts.rated = drive.life.rated_bytes.value_or(0);
    facts.free = static_cast<double>(store::free_bytes_of(present).value_or(0));
    try {
        facts.rate = bench::measure_drive(present);
    } catch (const Error& refusal) {
        facts.obstacle = refusal.what();
    }
    return facts;
}

// `named`: folders of csd.path; empty: those of mounted drives.
doctor::HostFacts find_host(const std::vector<std::string>& named) {
    utsname system{};
    ::uname(&system);
    const doctor::NetworkFacts network = doctor::find_network();
    doctor::HostFacts facts{.host = system.nodename,
                            .cores = usable_cores(),
                            .memory = static_cast<double>(machine_memory().available_bytes),
                            .memory_rate = model::measure_memory_rate({}),
                            .interface = network.interface,
                            .network = network.rate};
    find_compute(facts);
    for (const std::string& folder :
         named.empty() ? doctor::folders_of_mounts(doctor::read_whole("/proc/self/mounts"))
                       : named) {
        facts.drives.push_back(find_drive(folder));
    }
    find_nodes(facts);
    return facts;
}

// The folders of csd.path if the user names some.
std::vector<std::string> named_folders(const config::RunSettings& run) {
    return run.csd.path == config::CsdSettings{}.path ? std::vector<std::string>() : run.csd.path;
}

// Returns this host's findings in one line.
std::string findings_here(const config::RunSettings& run) {
    return doctor::to_json(find_host(named_folders(run)))
        .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Each node's first rank measures, while no other one does. Collective.
std::vector<doctor::HostFacts> find_hosts_of_ranks(const mpi::Communicator& world,
                                                   const config::RunSettings& run) {
    const mpi::Topology nodes = mpi::discover_nodes(world);
    std::string mine;
    world.together([&] {
        if (nodes.rank_in_group(world.rank()) == 0) {
            mine = findings_here(run);
        }
    });
    std::vector<doctor::HostFacts> hosts;
    for (const std::vector<int>& ranks : nodes.ranks_of) {
        hosts.push_back(doctor::host_facts(world.broadcast(mine, ranks.front())));
    }
    return hosts;
}

// Returns the command that other hosts call: this program, or the one that finds its libraries
// (NEARSTEP_PROGRAM).
std::vector<std::string> command_for_hosts(const config::RunSettings& run) {
    const char* named = std::getenv("NEARSTEP_PROGRAM");
    std::vector<std::string> command{
        "env",
        "OMPI_ALLOW_RUN_AS_ROOT=1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
        named != nullptr && *named != '\0' ? named : fs::read_symlink("/proc/self/exe").string(),
        "doctor",
        "--findings"};
    const std::vector<std::string> folders = named_folders(run);
    if (!folders.empty()) {
        command.push_back("--set=csd.path=" + nlohmann::json(folders).dump());
    }
    return command;
}

void print_missing(const doctor::SiteText& site) {
    for (const std::string& missing : site.missing) {
        std::cout << "missing: " << missing << "\n";
    }
    std::cout << std::flush;
}

// Removes the folders that it made if the file cannot be written.
void write_in_new_folder(const std::string& folder, const std::string& file,
                         const std::string& contents) {
    const std::vector<std::string> missing = store::missing_folders({folder + "/."});
    store::make_folders(folder);
    try {
        write_whole_file(file, contents);
    } catch (const Error&) {
        store::remove_empty_folders(missing);
        throw;
    }
}

// Writes the site of these ranks' hosts, or of the named ones. Collective.
void write_site(const mpi::Communicator& world, const config::RunSettings& run,
                const std::string& folder, const std::vector<std::string>& names) {
    const fs::path file = fs::path(folder) / "site.toml";
    world.on_rank_0([&] {
        std::error_code none;
        if (!names.empty() && world.size() > 1) {
            throw ConfigError(
                "--write-site: either name hosts, or start a rank on each with "
                "mpirun, not both.");
        }
        doctor::check_host_names(names);
        if (fs::exists(file, none)) {
            throw ConfigError(text("--write-site: ", file.string(),
                                   " is there already: name another folder, or remove it."));
        }
        check_writable((fs::path(store::nearest_present(folder)) / "site.toml").string());
    });
    doctor::AskedHosts asked;
    if (names.empty()) {
        asked.found = find_hosts_of_ranks(world, run);
    } else {
        asked = doctor::ask_hosts(names, run.hosts.remote, command_for_hosts(run));
    }
    world.on_rank_0([&] {
        const doctor::SiteNames site_names{
            .site = fs::absolute(fs::path(folder) / "x").parent_path().filename(),
            .remote = run.hosts.remote,
            .has_hosts = !names.empty()};
        const doctor::SiteText site =
            asked.found.empty() ? doctor::SiteText() : doctor::site_text(site_names, asked.found);
        if (!asked.faults.empty()) {
            print_missing(site);
            throw ConfigError(text("--write-site: no site is written, since ", asked.faults.size(),
                                   " of ", names.size(), " hosts ",
                                   asked.faults.size() == 1 ? "lacks" : "lack",
                                   " findings: ", first_of(asked.faults, "; "), "."));
        }
        write_in_new_folder(folder, file.string(), site.toml);
        std::cout << "site: " << file.string() << "\n";
        print_missing(site);
    });
}

}  // namespace

void add_doctor(CLI::App& program, Action& action) {
    auto arguments = std::make_shared<DoctorArguments>();
    CLI::App& command =
        *program.add_subcommand("doctor",
                                "Say what each node has and which path each part of a run takes "
                                "there; trains nothing. Example:\n  mpirun -np 2 nearstep doctor "
                                "configs/tiny.toml --site cluster/localhost");
    add_run_arguments(command, arguments->run, ConfigFile::optional);
    command.add_option("--json", arguments->json, "write the findings to this file");
    command
        .add_option(
            "--write-site", arguments->site,
            "FOLDER and HOST...: measure these hosts, or this machine, for some seconds and "
            "write a site of them to site.toml in this folder; its drives are those mounted, or "
            "the folders of csd.path; hosts.remote reaches them")
        ->check(not_empty())
        ->type_name("FOLDER HOST...")
        ->expected(1, kMostCount);
    // For doctor/reached_hosts.cpp. An option without a group is not shown in the help.
    command.add_flag("--findings", arguments->prints_findings)->group("");
    command.callback([arguments, &action] {
        action = [arguments](const mpi::Communicator& starter) {
            config::Sources sources = read_sources(starter, arguments->run);
            sources.needs_data = false;
            const config::RunSettings run = config::parse(sources);
            starter.on_rank_0([&] {
                check_apart({{"--json", arguments->json}}, inputs_of(sources, run));
            });
            const auto world =
                mpi::Communicator::world(std::chrono::seconds(run.exchange.timeout_s));
            if (arguments->prints_findings) {
                world.on_rank_0(
                    [&] { std::cout << doctor::kFindings << findings_here(run) << std::endl; });
                return;
            }
            if (!arguments->site.empty()) {
                write_site(world, run, arguments->site.front(),
                           {arguments->site.begin() + 1, arguments->site.end()});
                return;
            }
            write_result_of(
                world,
                [&] {
                    const nlohmann::ordered_json report = doctor::examine(
                        world, run,
                        arguments->run.config.empty() ? doctor::RunFinding::left_out
                                                      : doctor::RunFinding::included);
                    world.on_rank_0([&] { doctor::print(report, std::cout); });
                    return report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) +
                           "\n";
                },
                arguments->json);
        };
    });
}

}  // namespace nearstep::app
