// Runs the same first steps in several modes. Used by the command compare.
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/output_file.hpp"
#include "config/load.hpp"
#include "engine/placement/devices.hpp"
#include "plan/link_rates.hpp"
#include "report/compare_table.hpp"
#include "report/lines.hpp"
#include "report/prediction.hpp"
#include "report/summary.hpp"
#include "report/traffic_report.hpp"
#include "train/corpus.hpp"
#include "train/loop.hpp"
#include "train/trainer.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>

namespace nearstep::train {

namespace {

// The column's run with `devices` devices and state folders of its own.
config::RunSettings settings_of(const Column& column, const CompareOptions& options, int devices) {
    config::RunSettings one = column.run;
    if (devices > 0) {
        one.csd.per_rank = {devices};
    }
    one.csd.durability = config::Durability::none;
    one.checkpoint.path.clear();  // there is none to look for
    one.train.stop_at = std::min<std::int64_t>(options.steps, one.train.steps);
    for (std::string& path : one.csd.path) {
        path += "/compare";
    }
    return one;
}

// Returns the run with the same compute and codec, on links without delay.
config::RunSettings unshaped(config::RunSettings run) {
    run.link = {};
    run.csd.update_mparam_s = 0;
    run.csd.state = arith::StateFormat::fp32;
    if (run.mode == config::Mode::base || run.mode == config::Mode::su) {
        run.mode = config::Mode::su_o;
    }
    return run;
}

// The state files of this rank's runs.
using Made = std::set<std::string>;

report::RunRecord run_steps(const mpi::Communicator& world, const config::RunSettings& run,
                            Made& made) {
    config::validate_for_ranks(run, world.size());
    Trainer trainer(world, run, load_corpus(world, run),
                    {.request = {.kind = engine::StartRequest::Kind::fresh}});
    trainer.begin();  // which takes back what it made if it refuses
    const store::RankFiles files = engine::files_of_rank(trainer.engine().settings(), world);
    made.insert(files.states.begin(), files.states.end());
    made.insert(files.manifest);
    report::RunRecord record{.run = run,
                             .ranks = world.size(),
                             .facts = trainer.engine().facts(),
                             .vector_bytes = trainer.engine().vector_bytes(),
                             .parameters = trainer.parameters()};
    const std::vector<std::uint64_t> written = trainer.engine().written_bytes();
    for (std::int64_t step = 0; step < run.train.stop_at; ++step) {
        // No overlap of steps in any mode, so that the phases match the paper's formula.
        trainer.step();
        record.steps.push_back(trainer.finish());
        record.seconds += record.steps.back().seconds.total();
    }
    record.endurance =
        report::measure_endurance(written, trainer.engine().written_bytes(), record.steps.size(),
                                  record.seconds, run.csd.rated_tbw);
    record.masters_digest = trainer.engine().masters_digest();
    record.gpu = trainer.gpu_use(record.steps.size());
    return record;
}

void announce(const mpi::Communicator& world, const std::string& line) {
    if (world.rank() == 0) {
        std::printf("%s\n", line.c_str());
        std::fflush(stdout);
    }
}

// Measures the compute phases alone, once per codec and number format.
class ComputeSeconds {
public:
    ComputeSeconds(const mpi::Communicator& world, Made& made) : world_(world), made_(made) {}

    const report::PhaseSeconds& of(const config::RunSettings& run) {
        const std::string kind = text(config::name_of(run.compress.codec), " ", run.compress.keep,
                                      " ", name_of(run.model.dtype));
        const auto known = known_.find(kind);
        if (known != known_.end()) {
            return known->second;
        }
        announce(world_, text("measuring the compute without shaped links (codec ",
                              config::name_of(run.compress.codec), ") ..."));
        const report::RunRecord record = run_steps(world_, unshaped(run), made_);
        return known_[kind] = report::median_seconds(record.steps);
    }

private:
    const mpi::Communicator& world_;
    Made& made_;
    std::map<std::string, report::PhaseSeconds> known_;
};

std::vector<report::Compared> run_all(const mpi::Communicator& world, const CompareOptions& options,
                                      Made& made) {
    const std::vector<int> counts = options.devices.empty() ? std::vector<int>{0} : options.devices;
    ComputeSeconds compute(world, made);
    std::vector<report::Compared> all;
    for (const int devices : counts) {
        for (const Column& column : options.columns) {
            const config::RunSettings run = settings_of(column, options, devices);
            report::Compared one{.label = column.label, .record = {}};
            const bool is_shaped = run.link.are_shaped();
            const report::PhaseSeconds reference =
                is_shaped ? compute.of(run) : report::PhaseSeconds{};
            announce(world,
                     text("running ", run.train.stop_at, " steps of ", column.label, " ..."));
            one.record = run_steps(world, run, made);
            one.seconds = report::median_seconds(one.record.steps);
            if (is_shaped) {
                one.predicted = report::predict(one.record, reference);
            }
            all.push_back(std::move(one));
        }
    }
    return all;
}

// Removes only files that this comparison made, and folders that are empty then. Says so.
void remove_state(const mpi::Communicator& world, const Made& made) {
    std::array<std::uint64_t, 1> removed{};
    std::set<std::filesystem::path> folders;
    for (const std::string& file : made) {
        std::error_code error;
        removed[0] += std::filesystem::remove(file, error) ? 1 : 0;
        if (error) {
            log_event("not_removed", {{"file", file}, {"reason", error.message()}});
        }
        folders.insert(std::filesystem::path(file).parent_path());
    }
    world.sum(removed);  // also waits for all ranks
    for (const std::filesystem::path& folder : folders) {
        std::error_code ignored;  // not empty, or removed by another rank
        std::filesystem::remove(folder, ignored);
    }
    world.barrier();
    std::string line = text("removed the ", removed[0], " state files of this comparison");
    for (const std::filesystem::path& folder : folders) {
        std::error_code is_gone;
        for (std::filesystem::directory_iterator entry(folder, is_gone), end;
             !is_gone && entry != end; entry.increment(is_gone)) {
            line += text("; ", entry->path().string(), " is not one of them and stays");
        }
    }
    announce(world, line);
}

void print(const std::vector<report::Compared>& all, bool shows_traffic) {
    std::vector<report::RunRecord> records;
    records.reserve(all.size());
    for (const report::Compared& one : all) {
        records.push_back(one.record);
    }
    std::printf("%s%s", report::phase_table(all).c_str(),
                shows_traffic ? report::traffic_table(records).c_str() : "");
    for (const report::Compared& one : all) {
        std::printf("%s, %d devices: %s\n", one.label.c_str(), one.record.facts.devices,
                    report::describe(one.record.endurance).c_str());
    }
    std::fflush(stdout);
}

}  // namespace

void compare(const mpi::Communicator& world, const CompareOptions& options) {
    if (options.steps < 1) {
        throw ConfigError(text("compare --steps is ", options.steps, ": give 1 or more."));
    }
    expects(!options.columns.empty(), "a comparison has a column");
    world.on_rank_0([&] { check_writable(options.json); });
    const std::string links = plan::describe_links(options.columns.front().run);
    if (!links.empty()) {
        announce(world, links);
    }
    Made made;
    std::vector<report::Compared> all;
    try {
        all = run_all(world, options, made);
    } catch (const ConfigError&) {  // on all ranks alike
        remove_state(world, made);
        throw;
    }
    remove_state(world, made);
    world.on_rank_0([&] {
        print(all, options.shows_traffic);
        write_whole_file(options.json, report::text_of(report::to_json(all)));
    });
}

}  // namespace nearstep::train
