#include "base/error.hpp"
#include "config/load.hpp"
#include "train/run.hpp"
#include "train/summary.hpp"
#include "train/trainer.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>

namespace nearstep::train {

namespace {

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const std::size_t middle = values.size() / 2;
    return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// Medians over the steps behind the first, which warms up.
PhaseSeconds median_seconds(const std::vector<StepReport>& steps) {
    const std::size_t first = steps.size() > 1 ? 1 : 0;
    std::vector<double> forward;
    std::vector<double> backward;
    std::vector<double> update;
    for (std::size_t i = first; i < steps.size(); ++i) {
        forward.push_back(steps[i].seconds.forward);
        backward.push_back(steps[i].seconds.backward);
        update.push_back(steps[i].seconds.update);
    }
    return {median(forward), median(backward), median(update)};
}

double total(const PhaseSeconds& seconds) {
    return seconds.forward + seconds.backward + seconds.update;
}

// The settings of one column of the comparison; its state lies in folders of its own.
config::Run settings_of(const config::Run& run, const CompareOptions& options, config::Mode mode,
                        int devices) {
    config::Run one = run;
    one.mode = mode;
    one.compress.codec = mode == config::Mode::su_o_c ? options.codec : "dense";
    if (mode == config::Mode::base) {
        one.gather.codec = "dense";
    }
    if (devices > 0) {
        one.csd.per_rank = {devices};
    }
    one.csd.durability = "none";
    one.train.stop_at = std::min<std::int64_t>(options.steps, run.train.steps);
    for (std::string& path : one.csd.path) {
        path += "/compare";
    }
    return one;
}

RunRecord run_steps(const mpi::Communicator& world, const config::Run& run) {
    config::validate_for_ranks(run, world.size());
    Trainer trainer(world, run);
    trainer.start();
    RunRecord record{.run = run,
                     .ranks = world.size(),
                     .devices = trainer.devices(),
                     .parameters = trainer.geometry().elems};
    for (std::int64_t step = 0; step < run.train.stop_at; ++step) {
        record.steps.push_back(trainer.step());
        record.seconds += total(record.steps.back().seconds);
    }
    record.masters_digest = trainer.masters_digest();
    return record;
}

void print_phases(const std::vector<RunRecord>& records) {
    std::printf("Seconds per step (medians, first step left out); speed-up over the first line:\n");
    std::printf(
        "  mode    devices  forward  backward + gradients  update   total  speed-up  loss of the "
        "last step\n");
    const double first = total(median_seconds(records.front().steps));
    for (const RunRecord& record : records) {
        const PhaseSeconds seconds = median_seconds(record.steps);
        std::printf("  %-7s %7d  %7.3f  %20.3f  %6.3f  %6.3f  %7.2fx  %.6f\n",
                    config::name_of(record.run.mode), record.devices, seconds.forward,
                    seconds.backward, seconds.update, total(seconds), first / total(seconds),
                    record.steps.back().loss);
    }
}

}  // namespace

void compare(const mpi::Communicator& world, const config::Run& run,
             const CompareOptions& options) {
    if (options.steps < 1) {
        throw ConfigError(text("compare --steps is ", options.steps, ": give 1 or more."));
    }
    world.together([&] {
        if (world.rank() == 0 && !options.json.empty()) {
            check_writable(options.json);
        }
    });
    const std::vector<int> counts = options.devices.empty() ? std::vector<int>{0} : options.devices;
    std::vector<RunRecord> records;
    nlohmann::json summaries = nlohmann::json::array();
    for (const int devices : counts) {
        for (const config::Mode mode : options.modes) {
            const config::Run one = settings_of(run, options, mode, devices);
            if (world.rank() == 0) {
                std::printf("running %lld steps in mode %s ...\n",
                            static_cast<long long>(one.train.stop_at), config::name_of(mode));
                std::fflush(stdout);
            }
            records.push_back(run_steps(world, one));
            nlohmann::json summary = to_json(records.back());
            const PhaseSeconds seconds = median_seconds(records.back().steps);
            summary["phases_s"] = {{"forward", seconds.forward},
                                   {"backward", seconds.backward},
                                   {"update", seconds.update}};
            summaries.push_back(summary);
        }
    }
    world.barrier();
    world.together([&] {
        for (const std::string& path : settings_of(run, options, run.mode, 0).csd.path) {
            std::error_code ignored;  // another rank of the node may have removed it
            std::filesystem::remove_all(path, ignored);
        }
        if (world.rank() == 0) {
            print_phases(records);
            std::printf("%s", traffic_table(records).c_str());
            std::fflush(stdout);
            if (!options.json.empty()) {
                write_whole_file(options.json, summaries.dump(2) + "\n");
            }
        }
    });
}

}  // namespace nearstep::train
