#include "bench/update_bench.hpp"

#include "base/error.hpp"
#include "base/machine.hpp"
#include "base/statistics.hpp"
#include "base/units.hpp"
#include "base/version.hpp"
#include "bench/update_workload.hpp"
#include "bench/variants.hpp"

#include <nlohmann/json.hpp>

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <span>
#include <thread>

namespace nearstep::bench {

namespace {

using csd::Engine;
using csd::Optimizer;
using csd::StateFormat;
using Clock = std::chrono::steady_clock;

void pin_to(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<std::size_t>(cpu), &set);
    if (::pthread_setaffinity_np(::pthread_self(), sizeof set, &set) != 0) {
        throw Error(text("Cannot pin a thread to CPU ", cpu, ": run without --threads."));
    }
}

arith::UpdateScalars scalars_of(Optimizer optimizer) {
    arith::UpdateScalars scalars;
    scalars.optimizer = optimizer;
    scalars.step_size = 1e-4F;
    scalars.decay_factor = 1 - 1e-5F;
    scalars.gradient_decay = 0.1F;
    scalars.random_key = 1;
    return scalars;
}

// Seconds of each round, from thread 0's start to the last thread's end.
struct Rounds {
    std::vector<double> update;
    std::vector<double> in_place;
};

// Runs `work` on all threads at once. Seconds from this thread's start to the last thread's end.
template <typename Work>
double timed(std::barrier<>& barrier, std::vector<Clock::time_point>& ends, std::size_t part,
             const Work& work) {
    barrier.arrive_and_wait();
    const auto start = Clock::now();
    work();
    ends[part] = Clock::now();
    barrier.arrive_and_wait();
    return std::chrono::duration<double>(*std::ranges::max_element(ends) - start).count();
}

Rounds measure(UpdateWorkload& workload, memory::Buffer& other, const Engine& engine,
               const arith::UpdateScalars& scalars, std::size_t subgroups,
               const std::vector<int>& cpus, int rounds) {
    Rounds result;
    std::barrier<> barrier(static_cast<std::ptrdiff_t>(cpus.size()));
    std::vector<Clock::time_point> ends(cpus.size());
    const std::span<std::uint64_t> words = other.as<std::uint64_t>();
    const auto body = [&](std::size_t part) {
        pin_to(cpus[part]);
        const auto share = [&](std::size_t all, std::size_t p) { return all * p / cpus.size(); };
        const auto update = [&] {
            for (std::size_t s = share(subgroups, part); s < share(subgroups, part + 1); ++s) {
                workload.update(engine, scalars, s);
            }
        };
        const auto increment = [&] {
            const std::size_t begin = share(words.size(), part);
            engine.increment(words.data() + begin, share(words.size(), part + 1) - begin);
        };
        for (int round = 0; round < rounds; ++round) {
            const double update_s = timed(barrier, ends, part, update);
            const double in_place_s = timed(barrier, ends, part, increment);
            if (part == 0) {
                result.update.push_back(update_s);
                result.in_place.push_back(in_place_s);
            }
        }
    };
    std::vector<std::jthread> threads;
    for (std::size_t part = 0; part < cpus.size(); ++part) {
        threads.emplace_back(body, part);
    }
    threads.clear();  // joins the threads
    return result;
}

nlohmann::json row_of(const Rounds& rounds, double bytes, double parameters) {
    const double update_s = summary_of(rounds.update).median;
    return {{"parameters", parameters},
            {"rounds", rounds.update.size()},
            {"bytes_per_parameter", bytes / parameters},
            {"parameters_per_s", parameters / update_s},
            {"update_gb_per_s", bytes / update_s / 1e9},
            {"in_place_gb_per_s", bytes / summary_of(rounds.in_place).median / 1e9},
            {"share_of_in_place", summary_of(ratios_of(rounds.in_place, rounds.update)).median}};
}

void print_update_row(std::ostream& out, const nlohmann::json& row) {
    std::array<char, 160> line{};
    std::snprintf(
        line.data(), line.size(), "%-8s  %-9s  %7d  %15.2f  %13.0f  %13.2f  %13.2f  %8.1f %%\n",
        row["state"].get<std::string>().c_str(), row["optimizer"].get<std::string>().c_str(),
        row["threads"].get<int>(), row["bytes_per_parameter"].get<double>(),
        row["parameters_per_s"].get<double>() / 1e6, row["update_gb_per_s"].get<double>(),
        row["in_place_gb_per_s"].get<double>(), row["share_of_in_place"].get<double>() * 100);
    out << line.data() << std::flush;
}

void verify(UpdateWorkload& workload, const Engine& engine, const arith::UpdateScalars& scalars,
            std::size_t subgroups) {
    for (const std::size_t subgroup : {std::size_t{0}, subgroups - 1}) {
        if (!workload.verify(engine, scalars, subgroup)) {
            throw Error(text("The engine ", engine.name, " does not give the bits of the scalar ",
                             "engine in subgroup ", subgroup,
                             ": do not train on this CPU, and report it."));
        }
    }
}

}  // namespace

nlohmann::json bench_update(const UpdateBenchOptions& options, std::ostream& out) {
    const std::vector<int> cpus = usable_cpus();
    std::vector<int> counts = options.threads;
    if (counts.empty()) {
        counts = {1};
        if (cpus.size() > 1) {
            counts.push_back(static_cast<int>(cpus.size()));
        }
    }
    const auto most = static_cast<std::size_t>(*std::ranges::max_element(counts));
    if (most > cpus.size()) {
        throw ConfigError(text("--threads ", most, " cannot be pinned to the ", cpus.size(),
                               " CPUs of this process: give fewer."));
    }
    const std::vector<std::string> names =
        options.engine.empty() ? std::vector<std::string>{} : std::vector{options.engine};
    const Engine engine = variants_named("--engine", names, csd::engines()).front();
    const std::size_t subgroups =
        std::max(most, round_up(options.parameters, kSubgroupElems) / kSubgroupElems);
    out << "engine " << engine.name << ", " << static_cast<double>(subgroups * kSubgroupElems) / 1e6
        << " M parameters, bf16 gradients in, bf16 parameters out\n"
           "state     optimizer  threads  bytes/parameter  Mparameters/s  update (GB/s)  in place "
           "(GB/s)   share\n";
    nlohmann::json rows = nlohmann::json::array();
    for (const std::string& state : options.states) {
        const StateFormat format = csd::parse_state_format(state);
        for (const std::string& optimizer : options.optimizers) {
            const arith::UpdateScalars scalars = scalars_of(csd::parse_optimizer(optimizer));
            UpdateWorkload workload(format, scalars.optimizer, subgroups);
            memory::Buffer other(subgroups * workload.touched_bytes() / 2);
            verify(workload, engine, scalars, subgroups);
            for (const int threads : counts) {
                const Rounds rounds =
                    measure(workload, other, engine, scalars, subgroups,
                            {cpus.begin(), cpus.begin() + threads}, options.rounds);
                nlohmann::json row =
                    row_of(rounds, static_cast<double>(subgroups * workload.touched_bytes()),
                           static_cast<double>(subgroups * kSubgroupElems));
                row["commit"] = commit();
                row["engine"] = engine.name;
                row["state"] = state;
                row["optimizer"] = optimizer;
                row["threads"] = threads;
                row["huge_page_share"] = workload.huge_page_share();
                row["verified"] = true;
                print_update_row(out, row);
                rows.push_back(row);
            }
        }
    }
    return rows;
}

}  // namespace nearstep::bench
