#include "train/run.hpp"

#include "base/error.hpp"
#include "base/units.hpp"
#include "base/version.hpp"
#include "checkpoint/checkpoint.hpp"
#include "config/load.hpp"
#include "csd/engine.hpp"
#include "mpi/session.hpp"
#include "train/summary.hpp"
#include "train/trainer.hpp"

#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <optional>

namespace nearstep::train {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// Rank 0's reports to the user and to the metrics file.
class Reporter {
public:
    Reporter(bool is_speaking, const config::Run& run, std::size_t parameters,
             const RunOptions& options)
        : is_speaking_(is_speaking), run_(run), parameters_(parameters) {
        if (is_speaking_ && !options.metrics.empty()) {
            metrics_.open(options.metrics, options.is_resuming ? std::ios::app : std::ios::trunc);
            if (!metrics_) {
                throw ConfigError(text(
                    "The metrics file ", options.metrics,
                    " cannot be written: name a file in a folder that exists and is writable."));
            }
        }
    }

    void step(const StepReport& report, std::int64_t last_step) {
        if (!is_speaking_) {
            return;
        }
        if (metrics_.is_open()) {
            metrics_ << to_json(report, parameters_).dump() << std::endl;
        }
        ++steps_;
        if (report.is_skipped) {
            std::printf("step %lld skipped: the gradient is not finite (loss scale %g)\n",
                        static_cast<long long>(report.step), report.loss_scale);
        }
        const bool is_due =
            steps_ == 1 || report.step == last_step || seconds_since(last_line_) >= 2;
        if (is_due) {
            last_line_ = Clock::now();
            print_line(report, last_step);
        }
    }

    void heldout(std::int64_t step, double loss) {
        if (is_speaking_) {
            std::printf("step %lld  held-out loss %.4f\n", static_cast<long long>(step), loss);
            std::fflush(stdout);
        }
        if (metrics_.is_open()) {
            metrics_ << nlohmann::json{{"step", step}, {"heldout_loss", loss}}.dump() << std::endl;
        }
    }

    void say(const std::string& line) const {
        if (is_speaking_) {
            std::printf("%s\n", line.c_str());
            std::fflush(stdout);
        }
    }

private:
    void print_line(const StepReport& report, std::int64_t last_step) const {
        const double seconds = seconds_since(start_);
        const double rate = static_cast<double>(steps_) / seconds;
        const auto left =
            static_cast<int>(std::lround(static_cast<double>(last_step - report.step) / rate));
        std::printf(
            "step %lld/%lld  loss %.4f  %.0f tokens/s  %d:%02d left  host link: %s B per "
            "parameter\n",
            static_cast<long long>(report.step), static_cast<long long>(last_step), report.loss,
            rate * run_.train.global_batch * run_.model.context, left / 60, left % 60,
            describe_host_link(report.traffic, parameters_, 1).c_str());
        std::fflush(stdout);
    }

    bool is_speaking_;
    const config::Run& run_;
    std::size_t parameters_;
    std::ofstream metrics_;
    std::int64_t steps_ = 0;
    Clock::time_point start_ = Clock::now();
    Clock::time_point last_line_ = Clock::now();
};

// The index to resume from; empty to start anew. Looks at the folder on rank 0.
std::string find_start(const mpi::Communicator& world, const config::Run& run,
                       const RunOptions& options) {
    const std::string folder = config::checkpoint_folder(run);
    std::string found;
    world.together([&] {
        if (world.rank() != 0) {
            return;
        }
        if (!options.resume_from.empty()) {
            found = options.resume_from;
            return;
        }
        const std::optional<std::string> newest = checkpoint::find_newest(folder);
        if (options.is_resuming) {
            if (!newest) {
                throw ConfigError(text("There is no checkpoint in ", folder,
                                       " to resume from: start without --resume, or set "
                                       "checkpoint.path to its folder."));
            }
            found = *newest;
        } else if (newest && !options.is_fresh) {
            const auto reader = checkpoint::Reader::open(*newest);
            const checkpoint::Description& description = reader->description();
            const config::Run earlier =
                config::parse({.config_path = *newest, .config_text = description.config});
            if (description.step < earlier.train.steps) {
                throw ConfigError(text("The folder ", folder, " holds a run that stopped at step ",
                                       description.step, " of ", earlier.train.steps,
                                       ": go on with --resume, start anew with --fresh, or set "
                                       "checkpoint.path to another folder."));
            }
        }
    });
    return world.broadcast(found, 0);
}

void print_head(const Trainer& trainer, const mpi::Communicator& world, const config::Run& run,
                const std::string& start) {
    if (world.rank() != 0) {
        return;
    }
    const auto parameters = static_cast<double>(trainer.geometry().elems);
    std::printf("nearstep %s, commit %s; %s; %s; engine %s\n", version(), commit(),
                model::describe_backend(run.model).c_str(), mpi::library_version(),
                csd::best_engine().name);
    std::printf("config %s on site %s: %s with %.2f M parameters, mode %s, %d ranks, %d devices\n",
                run.name.c_str(), run.site.c_str(), run.model.architecture.c_str(),
                parameters / 1e6, config::name_of(run.mode), world.size(), trainer.devices());
    if (!trainer.describe_io().empty()) {
        std::printf("state of rank 0: %s per device\n", trainer.describe_io().c_str());
    }
    if (run.compress.codec == "topk") {
        std::printf(
            "gradients: top-k, keeps %.4g %% of the elements, which is %.4g %% of the dense fp32 "
            "volume\n",
            run.compress.keep * 100, run.compress.keep * 100);
    }
    if (!start.empty()) {
        std::printf("resumed from %s at step %lld\n", start.c_str(),
                    static_cast<long long>(trainer.steps_done()));
    }
    std::fflush(stdout);
}

}  // namespace

void train(const mpi::Communicator& world, const config::Run& run, const RunOptions& options) {
    config::validate_for_ranks(run, world.size());
    world.together([&] {
        if (world.rank() == 0 && !options.json.empty()) {
            check_writable(options.json);
        }
    });
    const std::string start = find_start(world, run, options);
    Trainer trainer(world, run);
    std::optional<Reporter> reporter;
    world.together(
        [&] { reporter.emplace(world.rank() == 0, run, trainer.geometry().elems, options); });
    if (start.empty()) {
        trainer.start();
    } else {
        trainer.restore(start);
    }
    print_head(trainer, world, run, start);

    RunRecord record{.run = run,
                     .ranks = world.size(),
                     .devices = trainer.devices(),
                     .parameters = trainer.geometry().elems};
    const std::int64_t last =
        run.train.stop_at > 0 ? std::min(run.train.stop_at, run.train.steps) : run.train.steps;
    const bool has_checkpoints = run.csd.durability != "none";
    const std::string folder = config::checkpoint_folder(run);
    while (trainer.steps_done() < last) {
        const auto begin = Clock::now();
        record.steps.push_back(trainer.step());
        record.seconds += seconds_since(begin);
        const std::int64_t done = trainer.steps_done();
        reporter->step(record.steps.back(), last);
        if (has_checkpoints && run.checkpoint.every > 0 && done % run.checkpoint.every == 0 &&
            done < last) {
            record.checkpoint = trainer.save(folder);
        }
        if (run.train.evaluate_every > 0 && done % run.train.evaluate_every == 0 && done < last) {
            reporter->heldout(done, trainer.evaluate());
        }
    }
    record.heldout_loss = trainer.evaluate();
    reporter->heldout(trainer.steps_done(), *record.heldout_loss);
    record.masters_digest = trainer.masters_digest();
    if (has_checkpoints && !record.steps.empty()) {
        record.checkpoint = trainer.save(folder);
        reporter->say("checkpoint " + record.checkpoint);
    }
    if (options.sample_bytes > 0) {
        reporter->say("sample:\n" + options.prompt +
                      trainer.sample(options.prompt, options.sample_bytes));
    }
    if (!record.steps.empty()) {
        reporter->say(traffic_table({record}));
    }
    world.together([&] {
        if (world.rank() == 0 && !options.json.empty()) {
            write_whole_file(options.json, to_json(record).dump(2) + "\n");
        }
    });
}

}  // namespace nearstep::train
