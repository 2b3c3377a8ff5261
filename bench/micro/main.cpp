// Measures nearstep's parts by Google Benchmark: on one rank those in memory, on several ranks the
// exchanges between their GPUs. Used by people, and by the scripts beside it.
#include "base/error.hpp"
#include "base/version.hpp"
#include "bench/micro/benchmarks.hpp"
#include "codec/codec.hpp"
#include "config/enumerations.hpp"
#include "mpi/session.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <vector>

namespace nearstep::bench {

namespace {

// A reporter that prints nothing, for ranks other than 0.
class Silence : public benchmark::BenchmarkReporter {
    bool ReportContext(const Context&) override { return true; }
    void ReportRuns(const std::vector<Run>&) override {}
};

int run(const mpi::Communicator& world, int argc, char** argv) {
    MicroOptions options;
    std::string rounding = "nearest";
    CLI::App program(
        "Measures parts of nearstep; takes all options of Google Benchmark "
        "(--benchmark_filter=..., "
        "--benchmark_out=FILE). Example:\n  build/release/bench/micro/nearstep_micro "
        "--benchmark_filter=codec/q4");
    program.allow_extras();
    program.add_option("--parameters", options.parameters, "of a pass")
        ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 34U))
        ->capture_default_str();
    program.add_option("--keep", options.keep, "share of the elements that topk keeps");
    program.add_option("--rounding", rounding, "of block codes: nearest or stochastic");
    program.add_option("--gradient", options.gradient, "file of bf16 values for gpu_codec");
    program.add_flag("--all", options.has_all, "all instruction sets and optimizers");
    CLI11_PARSE(program, argc, argv);
    options.rounding = parse_word<arith::Rounding>("rounding", rounding);

    std::vector<std::string> words = {argv[0], "--benchmark_repetitions=5",
                                      "--benchmark_min_time=0.1",
                                      "--benchmark_report_aggregates_only=true"};
    if (world.size() == 1) {
        // Rows take turns, because the load of a shared machine varies. Ranks need the same order.
        words.emplace_back("--benchmark_enable_random_interleaving=true");
    }
    for (const std::string& word : program.remaining()) {
        if (world.rank() == 0 || !word.starts_with("--benchmark_out")) {
            words.push_back(word);
        }
    }
    std::vector<char*> pointers;
    std::ranges::transform(words, std::back_inserter(pointers),
                           [](std::string& word) { return word.data(); });
    int count = static_cast<int>(pointers.size());
    benchmark::Initialize(&count, pointers.data());
    if (benchmark::ReportUnrecognizedArguments(count, pointers.data())) {
        return 2;
    }
    benchmark::AddCustomContext("commit", commit());
    if (world.size() > 1) {
        add_exchanges(world, options);
    } else {
        add_codecs(options);
        add_deltas(options);
        add_updates(options);
        add_gpu_codecs(options);
    }
    Silence silence;
    const std::size_t done = world.rank() == 0 ? benchmark::RunSpecifiedBenchmarks()
                                               : benchmark::RunSpecifiedBenchmarks(&silence);
    benchmark::ClearRegisteredBenchmarks();  // NCCL's groups end before MPI does
    return done > 0 ? 0 : 2;
}

}  // namespace

}  // namespace nearstep::bench

// Nothing is caught: the terminate handler of mpi::Session reports the error and ends all ranks.
int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape)
    const nearstep::mpi::Session session;
    return nearstep::bench::run(nearstep::mpi::Communicator::world(std::chrono::seconds(120)), argc,
                                argv);
}
