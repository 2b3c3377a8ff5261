// The commands `nearstep bench csd` and `nearstep bench network`. Used by commands.cpp.
#include "app/commands.hpp"
#include "base/error.hpp"
#include "bench/csd_bench.hpp"
#include "bench/network_bench.hpp"
#include "codec/codec.hpp"

#include <nlohmann/json.hpp>

#include <iostream>
#include <memory>
#include <string>

namespace nearstep::app {

namespace {

template <typename Number>
void add_number(CLI::App& command, const std::string& name, Number& value,
                const std::string& meaning, std::size_t least, std::size_t most) {
    command.add_option(name, value, meaning)->check(CLI::Range(least, most))->capture_default_str();
}

void add_bench_csd(CLI::App& bench, Action& action) {
    struct CsdBenchArguments {
        bench::CsdBenchSettings settings;
        std::string io = "auto";
    };
    auto arguments = std::make_shared<CsdBenchArguments>();
    CLI::App& command = *bench.add_subcommand(
        "csd",
        "Steps of an emulated device against the raw rate of its disk. Needs about 200 bytes of "
        "disk for each parameter. Example:\n  nearstep bench csd --path /mnt/nvme0/bench");
    bench::CsdBenchSettings& settings = arguments->settings;
    command.add_option("--path", settings.folder, "folder on the disk to measure")
        ->check(not_empty())
        ->capture_default_str();
    add_number(command, "--parameters", settings.parameters, "of the state, 12 bytes each", 1,
               std::size_t{1} << 40U);
    add_number(command, "--devices", settings.devices, "in the row with several on this disk", 1,
               64);
    add_number(command, "--slots", settings.slots, "of each device", 3, 64);
    add_number(command, "--subgroup-tiles", settings.subgroup_tiles, "tiles of a subgroup", 1,
               4096);
    add_number(command, "--rounds", settings.rounds, "medians are over so many rounds", 1, 10000);
    add_number(command, "--steps", settings.steps, "of a turn", 1, 10000);
    command
        .add_option("--state", settings.states,
                    "state formats to compare, commas between; none: compare parts of a device")
        ->delimiter(',');
    command.add_option("--codec", settings.codec, "of the gradients")
        ->check(CLI::IsMember(codec::codec_names()))
        ->capture_default_str();
    command.add_option("--io", arguments->io, "of the rows that do not say threads")
        ->check(CLI::IsMember({"auto", "io_uring", "threads"}))
        ->capture_default_str();
    command.add_option("--site", settings.site, "name of the machine, for the result")
        ->capture_default_str();
    command.add_option("--json", settings.json, "write a JSON line per row to this file");
    command.callback([arguments, &action] {
        action = on_rank_0([arguments] {
            check_apart({{"--json", arguments->settings.json}}, files_of_runs());
            arguments->settings.io = *parse_word<store::IoKind>(arguments->io);
            bench::bench_csd(arguments->settings);
        });
    });
}

void add_bench_network(CLI::App& bench, Action& action) {
    struct NetworkBenchArguments {
        bench::NetworkBenchOptions options;
        std::string json;
    };
    auto arguments = std::make_shared<NetworkBenchArguments>();
    CLI::App& command = *bench.add_subcommand(
        "network",
        "Measure how fast ranks exchange host memory by MPI, by size of message, inside a node and "
        "between nodes; nearstep plan --calibrate takes the result. launch/mpirun --bench-network "
        "runs it on the hosts of a site. Example:\n  launch/ranks 2 nearstep bench network --json "
        "network.json");
    bench::NetworkBenchOptions& options = arguments->options;
    add_number(command, "--least-bytes", options.least_bytes,
               "of a message; powers of 4 from there", 1, std::size_t{1} << 20U);
    add_number(command, "--most-bytes", options.most_bytes, "of a message", 1,
               std::size_t{1} << 30U);
    add_number(command, "--rounds", options.rounds, "medians are over so many rounds", 1, 10000);
    add_number(command, "--ranks-per-node", options.ranks_per_node,
               "make nodes of so many ranks, as exchange.ranks_per_node; 0: as they are", 0, 1024);
    command.add_option("--site", options.site, "name of where this is, for the result")
        ->capture_default_str();
    command
        .add_option("--link-gb-s", options.link_gb_s,
                    "that a node's network should carry (link.network_gb_s), to compare with")
        ->check(number_in(0, 1e9));
    command.add_option("--interface", options.interface, "of the network, to print its speed");
    command.add_option("--json", arguments->json, "write a JSON line per row to this file");
    command.callback([arguments, &action] {
        action = [arguments](const mpi::Communicator& world) {
            world.on_rank_0([&] { check_apart({{"--json", arguments->json}}, files_of_runs()); });
            write_result_of(
                world,
                [&] {
                    return lines_of(bench::bench_network(world, arguments->options, std::cout));
                },
                arguments->json);
        };
    });
}

}  // namespace

void add_bench(CLI::App& program, Action& action) {
    CLI::App& bench = *program.add_subcommand(
        "bench", "Measure a part against its ceiling, which is measured in the same run");
    bench.require_subcommand(1);
    add_bench_csd(bench, action);
    add_bench_network(bench, action);
}

}  // namespace nearstep::app
