// The command doctor. Used by commands.cpp.
#include "app/commands.hpp"
#include "base/error.hpp"
#include "base/machine.hpp"
#include "bench/csd_bench.hpp"
#include "config/load.hpp"
#include "doctor/doctor.hpp"
#include "doctor/site_text.hpp"
#include "doctor/system.hpp"
#include "memory/gpu.hpp"
#include "model/compute_device.hpp"
#include "model/gpu_peak.hpp"
#include "mpi/topology.hpp"
#include "store/drive.hpp"
#include "store/storage_folder.hpp"

#include <nlohmann/json.hpp>

#include <sys/utsname.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>

namespace nearstep::app {

namespace {

namespace fs = std::filesystem;

struct DoctorArguments {
    RunArguments run;
    std::string json;
    std::string site;  // the folder of --write-site; empty: none is written
};

// What computes: the GPUs if PyTorch finds some, else the CPU in the host's memory.
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

doctor::DriveFacts find_drive(const std::string& folder) {
    doctor::DriveFacts facts{.folder = folder};
    const std::string present = store::nearest_present(folder);
    const store::Drive drive = store::drive_of(present);
    facts.device = drive.name;
    facts.rated = drive.life.rated_bytes.value_or(0);
    facts.free = static_cast<double>(store::free_bytes_of(present).value_or(0));
    try {
        facts.rate = bench::measure_drive(present);
    } catch (const ConfigError& refusal) {
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
    return facts;
}

// Each node's first rank measures, while no other one does.
void write_site(const mpi::Communicator& world, const config::RunSettings& run,
                const std::string& folder) {
    const fs::path file = fs::path(folder) / "site.toml";
    world.on_rank_0([&] {
        std::error_code none;
        if (fs::exists(file, none)) {
            throw ConfigError(text("--write-site: ", file.string(),
                                   " is there already: name another folder, or remove it."));
        }
        store::make_writable_folder(folder);
        check_writable(file.string());
    });
    const bool is_named = run.csd.path != config::CsdSettings{}.path;
    const mpi::Topology nodes = mpi::discover_nodes(world);
    std::string mine;
    world.together([&] {
        if (nodes.rank_in_group(world.rank()) == 0) {
            mine = doctor::to_json(find_host(is_named ? run.csd.path : std::vector<std::string>()))
                       .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
        }
    });
    std::vector<doctor::HostFacts> hosts;
    for (const std::vector<int>& ranks : nodes.ranks_of) {
        hosts.push_back(doctor::host_facts(world.broadcast(mine, ranks.front())));
    }
    world.on_rank_0([&] {
        const std::string name = fs::absolute(fs::path(folder) / "x").parent_path().filename();
        const doctor::SiteText site = doctor::site_text(name, hosts);
        write_whole_file(file.string(), site.toml);
        std::cout << "site: " << file.string() << "\n";
        for (const std::string& missing : site.missing) {
            std::cout << "missing: " << missing << "\n";
        }
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
    command.add_option(
        "--write-site", arguments->site,
        "measure the nodes for some seconds and write a site of them to site.toml in "
        "this folder; its drives are those mounted, or the folders of csd.path");
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
            if (!arguments->site.empty()) {
                write_site(world, run, arguments->site);
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
