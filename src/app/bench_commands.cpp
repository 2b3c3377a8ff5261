#include "app/commands.hpp"
#include "base/error.hpp"
#include "bench/codec_bench.hpp"
#include "bench/csd_bench.hpp"
#include "bench/delta_bench.hpp"
#include "bench/exchange_bench.hpp"
#include "bench/gpu_codec_bench.hpp"
#include "bench/network_bench.hpp"
#include "bench/update_bench.hpp"
#include "codec/codec.hpp"

#include <nlohmann/json.hpp>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace nearstep::app {

namespace {

template <typename Options>
struct Arguments {
    Options options;
    std::string json;
};

void add_parameters(CLI::App& command, std::size_t& parameters, const std::string& meaning,
                    std::size_t most = std::size_t{1} << 34U) {
    command.add_option("--parameters", parameters, meaning)
        ->check(CLI::Range(std::size_t{1}, most))
        ->capture_default_str();
}

void add_rounds(CLI::App& command, int& rounds) {
    command.add_option("--rounds", rounds, "medians are over so many rounds")
        ->check(CLI::Range(1, 10000))
        ->capture_default_str();
}

void add_kernels(CLI::App& command, std::vector<std::string>& kernels) {
    command
        .add_option("--kernels", kernels,
                    "vector instructions, commas between; default: the fastest of this CPU")
        ->delimiter(',');
}

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
    add_parameters(command, settings.parameters, "of the state, 12 bytes each",
                   std::size_t{1} << 40U);
    command.add_option("--devices", settings.devices, "in the row with several on this disk")
        ->check(CLI::Range(1, 64))
        ->capture_default_str();
    command.add_option("--slots", settings.slots, "of each device")
        ->check(CLI::Range(3, 64))
        ->capture_default_str();
    command.add_option("--subgroup-tiles", settings.subgroup_tiles, "tiles of a subgroup")
        ->check(CLI::Range(std::size_t{1}, std::size_t{4096}))
        ->capture_default_str();
    add_rounds(command, settings.rounds);
    command.add_option("--steps", settings.steps, "of a turn")
        ->check(CLI::Range(1, 10000))
        ->capture_default_str();
    command
        .add_option("--state", settings.states,
                    "state formats to compare, commas between; none: compare parts of a device")
        ->delimiter(',');
    command.add_option("--codec", settings.codec, "of the gradients")
        ->check(CLI::IsMember(codec::codec_names()))
        ->capture_default_str();
    command.add_flag("--on-demand", settings.is_on_demand,
                     "run the row that a line of stdin names, and print a JSON line of it");
    command.add_option("--io", arguments->io, "of the rows that do not say threads")
        ->check(CLI::IsMember({"auto", "io_uring", "threads"}))
        ->capture_default_str();
    command.add_option("--site", settings.site, "name of the machine, for the result")
        ->capture_default_str();
    command.add_option("--json", settings.json, "write a JSON line per row to this file");
    command.callback([arguments, &action] {
        action = on_rank_0([arguments] {
            arguments->settings.io = store::parse_io_kind(arguments->io);
            bench::bench_csd(arguments->settings);
        });
    });
}

void add_bench_update(CLI::App& bench, Action& action) {
    auto arguments = std::make_shared<Arguments<bench::UpdateBenchOptions>>();
    CLI::App& command = *bench.add_subcommand(
        "update",
        "Measure the update of state in memory beside the rate at which the same bytes can be read "
        "and written. Example:\n  nearstep bench update --threads 1,2 --state fp32,compact");
    bench::UpdateBenchOptions& options = arguments->options;
    add_parameters(command, options.parameters, "rounded up to whole subgroups");
    command.add_option("--threads", options.threads, "numbers of pinned threads, commas between")
        ->delimiter(',')
        ->check(CLI::PositiveNumber);
    command.add_option("--state", options.states, "state formats, commas between")->delimiter(',');
    command.add_option("--optimizer", options.optimizers, "optimizers, commas between")
        ->delimiter(',');
    command.add_option("--engine", options.engine, "of this CPU; default: the fastest");
    add_rounds(command, options.rounds);
    command.add_option("--json", arguments->json, "write an array of rows to this file");
    command.callback([arguments, &action] {
        action = on_rank_0([arguments] {
            write_result_of([&] { return bench::bench_update(arguments->options, std::cout); },
                            arguments->json);
        });
    });
}

nlohmann::json run_bench_codec(const bench::CodecBenchOptions& options, bool is_on_gpu,
                               const std::string& gradient) {
    if (!is_on_gpu) {
        if (!gradient.empty()) {
            throw ConfigError("--gradient goes with --device cuda alone.");
        }
        return bench::bench_codec(options, std::cout);
    }
    if (!options.kernels.empty()) {
        throw ConfigError("--kernels names the CPU's: leave it out with --device cuda.");
    }
    return bench::bench_codec_on_gpu({.parameters = options.parameters,
                                      .codecs = options.codecs,
                                      .keep = options.keep,
                                      .rounding = options.rounding,
                                      .dtype = options.dtype,
                                      .gradient = gradient,
                                      .rounds = options.rounds},
                                     std::cout);
}

void add_bench_codec(CLI::App& bench, Action& action) {
    struct CodecArguments : Arguments<bench::CodecBenchOptions> {
        std::string device = "cpu";
        std::string gradient;
    };
    auto arguments = std::make_shared<CodecArguments>();
    CLI::App& command = *bench.add_subcommand(
        "codec",
        "Measure encoding and decoding of gradients in memory, on a GPU encoding alone, beside the "
        "rate of a copy. "
        "Examples:\n  nearstep bench codec --codec q4,topk --keep 0.01 --kernels scalar,avx2\n  "
        "nearstep bench codec --device cuda --parameters 134217728 --rounds 50");
    bench::CodecBenchOptions& options = arguments->options;
    command.add_option("--device", arguments->device, "where: cpu or cuda")
        ->capture_default_str()
        ->check(CLI::IsMember({"cpu", "cuda"}));
    command.add_option("--gradient", arguments->gradient,
                       "with --device cuda: file of bf16 values to encode; default: random ones");
    add_parameters(command, options.parameters, "rounded up to whole tiles of 65536");
    command.add_option("--codec", options.codecs, "codecs, commas between; default: all")
        ->delimiter(',');
    add_kernels(command, options.kernels);
    command.add_option("--keep", options.keep, "share of the elements that topk keeps")
        ->capture_default_str();
    command.add_option("--rounding", options.rounding, "of block codes: nearest or stochastic")
        ->capture_default_str();
    add_rounds(command, options.rounds);
    command.add_option("--json", arguments->json, "write an array of rows to this file");
    command.callback([arguments, &action] {
        action = on_rank_0([arguments] {
            write_result_of(
                [&] {
                    return run_bench_codec(arguments->options, arguments->device == "cuda",
                                           arguments->gradient);
                },
                arguments->json);
        });
    });
}

void add_bench_delta(CLI::App& bench, Action& action) {
    auto arguments = std::make_shared<Arguments<bench::DeltaBenchOptions>>();
    CLI::App& command = *bench.add_subcommand(
        "delta",
        "Measure encoding and decoding of new parameters as deltas beside the rate of a copy. "
        "Example:\n  nearstep bench delta --kernels scalar,avx2,avx512");
    bench::DeltaBenchOptions& options = arguments->options;
    add_parameters(command, options.parameters, "rounded up to whole messages");
    add_kernels(command, options.kernels);
    add_rounds(command, options.rounds);
    command.add_option("--json", arguments->json, "write an array of rows to this file");
    command.callback([arguments, &action] {
        action = on_rank_0([arguments] {
            write_result_of([&] { return bench::bench_delta(arguments->options, std::cout); },
                            arguments->json);
        });
    });
}

void add_bench_exchange(CLI::App& bench, Action& action) {
    auto arguments = std::make_shared<Arguments<bench::ExchangeBenchOptions>>();
    CLI::App& command = *bench.add_subcommand(
        "exchange",
        "Measure how fast the GPUs of a node exchange gradients and parameters, a rank for each. "
        "bench/gpu_exchange sets a copy between two GPUs beside it. Example:\n  launch/ranks "
        "4 nearstep bench exchange");
    bench::ExchangeBenchOptions& options = arguments->options;
    add_parameters(command, options.parameters,
                   "rounded up to a whole tile of 65536 for each rank");
    add_rounds(command, options.rounds);
    command.add_option("--json", arguments->json, "write an array of rows to this file");
    command.callback([arguments, &action] {
        action = [arguments](const mpi::Communicator& world) {
            write_result_of(
                world, [&] { return bench::bench_exchange(world, arguments->options, std::cout); },
                arguments->json);
        };
    });
}

void add_bench_network(CLI::App& bench, Action& action) {
    auto arguments = std::make_shared<Arguments<bench::NetworkBenchOptions>>();
    CLI::App& command = *bench.add_subcommand(
        "network",
        "Measure how fast ranks exchange host memory by MPI, by size of message, inside a node and "
        "between nodes; nearstep plan --calibrate takes the result. launch/mpirun --bench-network "
        "runs "
        "it on the hosts of a site. Example:\n  launch/ranks 2 nearstep bench network --json "
        "network.json");
    bench::NetworkBenchOptions& options = arguments->options;
    command
        .add_option("--least-bytes", options.least_bytes, "of a message; powers of 4 from there")
        ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 20U))
        ->capture_default_str();
    command.add_option("--most-bytes", options.most_bytes, "of a message")
        ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 30U))
        ->capture_default_str();
    add_rounds(command, options.rounds);
    command
        .add_option("--ranks-per-node", options.ranks_per_node,
                    "make nodes of so many ranks, as exchange.ranks_per_node; 0: as they are")
        ->check(CLI::Range(0, 1024));
    command.add_option("--site", options.site, "name of where this is, for the result")
        ->capture_default_str();
    command.add_option("--json", arguments->json, "write a JSON line per row to this file");
    command.callback([arguments, &action] {
        action = [arguments](const mpi::Communicator& world) {
            write_result_of(
                world, [&] { return bench::bench_network(world, arguments->options, std::cout); },
                arguments->json, lines_of);
        };
    });
}

}  // namespace

void add_bench(CLI::App& program, Action& action) {
    CLI::App& bench = *program.add_subcommand(
        "bench", "Measure a part against its ceiling, which is measured in the same run");
    bench.require_subcommand(1);
    add_bench_codec(bench, action);
    add_bench_csd(bench, action);
    add_bench_delta(bench, action);
    add_bench_exchange(bench, action);
    add_bench_network(bench, action);
    add_bench_update(bench, action);
}

}  // namespace nearstep::app
