#include "app/commands.hpp"
#include "bench/csd_bench.hpp"

#include <memory>
#include <string>

namespace nearstep::app {

namespace {

void add_bench_csd(CLI::App& bench, Action& action) {
    struct Arguments {
        bench::CsdBenchSettings settings;
        std::string io = "auto";
    };
    auto arguments = std::make_shared<Arguments>();
    CLI::App& command = *bench.add_subcommand(
        "csd",
        "Steps of an emulated device against the raw rate of its disk. Needs about 200 bytes of "
        "disk for each parameter. Example:\n  nearstep bench csd --path /mnt/nvme0/bench");
    bench::CsdBenchSettings& settings = arguments->settings;
    command.add_option("--path", settings.folder, "folder on the disk to measure")
        ->capture_default_str();
    command.add_option("--parameters", settings.parameters, "of the state, 12 bytes each")
        ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 40U))
        ->capture_default_str();
    command.add_option("--devices", settings.devices, "in the row with several on this disk")
        ->check(CLI::Range(1, 64))
        ->capture_default_str();
    command.add_option("--slots", settings.slots, "of each device")
        ->check(CLI::Range(3, 64))
        ->capture_default_str();
    command.add_option("--subgroup-tiles", settings.subgroup_tiles, "tiles of a subgroup")
        ->check(CLI::Range(std::size_t{1}, std::size_t{4096}))
        ->capture_default_str();
    command.add_option("--rounds", settings.rounds, "in each of which every row has its turn")
        ->check(CLI::Range(1, 10000))
        ->capture_default_str();
    command.add_option("--steps", settings.steps, "of a turn")
        ->check(CLI::Range(1, 10000))
        ->capture_default_str();
    command.add_option("--io", arguments->io, "of the rows that do not say threads")
        ->check(CLI::IsMember({"auto", "io_uring", "threads"}))
        ->capture_default_str();
    command.add_option("--site", settings.site, "name of the machine, for the result")
        ->capture_default_str();
    command.add_option("--json", settings.json, "write a JSON line per row to this file");
    command.callback([arguments, &action] {
        action = [arguments](const mpi::Communicator& world) {
            world.together([&] {
                if (world.rank() == 0) {
                    arguments->settings.io = store::parse_io_kind(arguments->io);
                    bench::bench_csd(arguments->settings);
                }
            });
        };
    });
}

}  // namespace

void add_bench(CLI::App& program, Action& action) {
    CLI::App& bench = *program.add_subcommand("bench", "Measure a part against its ceiling");
    bench.require_subcommand(1);
    add_bench_csd(bench, action);
}

}  // namespace nearstep::app
