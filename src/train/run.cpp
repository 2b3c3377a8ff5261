#include "train/run.hpp"

#include "base/error.hpp"
#include "base/stop_request.hpp"
#include "base/version.hpp"
#include "config/load.hpp"
#include "csd/engine.hpp"
#include "mpi/session.hpp"
#include "train/corpus.hpp"
#include "train/devices.hpp"
#include "train/prediction.hpp"
#include "train/reporter.hpp"
#include "train/site_links.hpp"
#include "train/start.hpp"
#include "train/summary.hpp"
#include "train/timeline_file.hpp"
#include "train/trainer.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>

namespace nearstep::train {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

void print_head(const Trainer& trainer, const mpi::Communicator& world, const config::Run& run,
                const std::vector<std::string>& start) {
    if (world.rank() != 0) {
        return;
    }
    const auto parameters = static_cast<double>(trainer.geometry().elems);
    const bool is_on_cards = run.csd.device == "xrt" && run.mode != config::Mode::base;
    std::printf("nearstep %s, commit %s; %s; %s; engine %s%s\n", version(), commit(),
                trainer.describe_model().c_str(), mpi::library_version(),
                is_on_cards ? "of the cards, on the host " : "", csd::best_engine().name);
    std::printf("config %s on site %s: %s with %.2f M parameters, mode %s, %d ranks, %d devices\n",
                run.name.c_str(), run.site.c_str(), run.model.architecture.c_str(),
                parameters / 1e6, config::name_of(run.mode), world.size(), trainer.devices());
    if (!trainer.describe_io().empty()) {
        std::printf("state of rank 0: %s per device\n", trainer.describe_io().c_str());
    }
    if (!describe_links(run).empty()) {
        std::printf("%s\n", describe_links(run).c_str());
    }
    if (run.compress.codec != "dense") {
        std::printf("%s\n",
                    describe_gradients(run, trainer.route().payload_bytes_per_parameter()).c_str());
    }
    if (!trainer.route().describe(run).empty()) {
        std::printf("%s\n", trainer.route().describe(run).c_str());
    }
    if (trainer.encodes_on_gpu()) {
        std::printf("gradients of rank 0 are encoded on its GPU\n");
    }
    if (trainer.gpu() != nullptr) {
        std::printf("%s\n", model::describe(trainer.gpu()->plan()).c_str());
    }
    for (const std::string& line :
         {trainer.gradient_gpu().describe(), trainer.parameter_gpu().describe()}) {
        if (!line.empty()) {
            std::printf("%s\n", line.c_str());
        }
    }
    for (const std::string& line : start) {
        std::printf("%s\n", line.c_str());
    }
    std::fflush(stdout);
}

// Metrics and evaluations of a step come before its commit: a step that a crash undid is repeated
// with them, and one that is committed has them.
RunRecord run_steps(Trainer& trainer, Reporter& reporter, const config::Run& run,
                    std::int64_t last) {
    RunRecord record{
        .run = run, .devices = trainer.devices(), .parameters = trainer.geometry().elems};
    const std::vector<std::uint64_t> written = trainer.written_bytes();
    const double committed = trainer.commit_seconds();
    const auto ended = [&](const StepReport& report) {
        record.steps.push_back(report);
        reporter.step(report, last);
    };
    const auto is_due = [](std::int64_t every, std::int64_t done) {
        return every > 0 && done % every == 0;
    };
    while (trainer.steps_done() < last) {
        auto begin = Clock::now();
        const bool is_stop_requested = trainer.step(ended).is_stop_requested;
        const std::int64_t done = trainer.steps_done();
        const bool evaluates = is_due(run.train.evaluate_every, done) && done < last;
        const bool saves = run.csd.durability != "none" && is_due(run.checkpoint.every, done) &&
                           done < last && !is_stop_requested;
        if (done < last && !is_stop_requested && !evaluates && !saves) {
            record.seconds += seconds_since(begin);
            continue;  // it ends under the next one
        }
        const StepReport report = trainer.finish();
        record.seconds += seconds_since(begin);
        ended(report);
        if (evaluates) {
            reporter.heldout(done, trainer.evaluate());
        }
        begin = Clock::now();
        trainer.commit();
        record.seconds += seconds_since(begin);
        if (is_stop_requested) {
            break;
        }
        if (saves) {
            record.checkpoint = trainer.save(config::checkpoint_folder(run));
        }
    }
    record.commit_seconds = trainer.commit_seconds() - committed;
    record.endurance = measure_endurance(written, trainer.written_bytes(), record.steps.size(),
                                         record.seconds, run.csd.rated_tbw);
    return record;
}

// What the run's summary says of where things lie and how they travel.
void note_layout(const Trainer& trainer, const mpi::Communicator& world,
                 const plan::Calibration& calibration, RunRecord& record) {
    record.calibration = calibration;
    record.ranks = world.size();
    record.nodes = trainer.nodes();
    record.has_equal_nodes = trainer.has_equal_nodes();
    record.copies = trainer.copies();
    record.vector_bytes = trainer.vector_bytes();
    record.payload_bytes_per_parameter = trainer.route().payload_bytes_per_parameter();
    record.handed_bytes_per_parameter = trainer.route().handed_bytes_per_parameter();
    record.has_dense_sums = trainer.route().is_dense_sum();
    record.expected = expect_of_links(record);
    record.encodes_on_gpu = trainer.encodes_on_gpu();
    record.gpu = trainer.report_gpu(record.steps.size());
    record.transport = trainer.gradient_gpu().transport();
    record.payload_transport = trainer.gradient_gpu().payload_transport();
    record.parameter_transport = trainer.parameter_gpu().transport();
}

void say_traffic(Reporter& reporter, const RunRecord& record) {
    if (record.steps.empty()) {
        return;
    }
    reporter.say(traffic_table({record}) + describe(record.endurance));
    for (const std::string& line :
         {describe_deltas(record), describe_expected(record), describe_gpu(record)}) {
        if (!line.empty()) {
            reporter.say(line);
        }
    }
}

}  // namespace

bool train(const mpi::Communicator& world, const config::Run& given, const RunOptions& options) {
    note_stop_requests();
    config::validate_for_ranks(given, world.size());
    const config::Run run = place_devices(world, given, options.granted_devices);
    world.together([&] {
        for (const std::string* file : {&options.json, &options.trace}) {
            if (world.rank() == 0 && !file->empty()) {
                check_writable(*file);
            }
        }
    });
    const std::unique_ptr<data::Tokenizer> tokenizer = make_tokenizer(world, run);
    const Start start = find_start(world, run, *tokenizer, options);
    std::optional<trace::Timeline> timeline;
    if (!options.trace.empty()) {
        timeline.emplace();
    }
    Trainer trainer(world, run, *tokenizer, options.fault_plan, timeline ? &*timeline : nullptr);
    std::optional<Reporter> reporter;
    world.together([&] {
        reporter.emplace(world.rank() == 0, run, trainer.geometry().elems, options.metrics);
    });
    print_head(trainer, world, run, begin(trainer, start));

    const std::int64_t last =
        run.train.stop_at > 0 ? std::min(run.train.stop_at, run.train.steps) : run.train.steps;
    reporter->begin(trainer.steps_done(), last);
    begin_timeline(world, timeline);
    RunRecord record = run_steps(trainer, *reporter, run, last);
    if (timeline) {
        record.lanes = lane_shares(world, *timeline, record.seconds);
        reporter->say(write_timeline(world, *timeline, *record.lanes, options.trace));
    }
    note_layout(trainer, world, options.calibration, record);
    record.heldout_loss = trainer.evaluate();
    reporter->heldout(trainer.steps_done(), *record.heldout_loss);
    record.masters_digest = trainer.masters_digest();
    record.network_sent_bytes = trainer.network_sent_bytes();
    if (run.csd.durability != "none" && trainer.steps_done() != start.checkpoint_step) {
        record.checkpoint = trainer.save(config::checkpoint_folder(run));
        reporter->say("checkpoint " + record.checkpoint);
    }
    if (options.sample_tokens > 0) {
        reporter->say("sample:\n" + options.prompt +
                      trainer.sample(options.prompt, options.sample_tokens));
    }
    say_traffic(*reporter, record);
    world.together([&] {
        if (world.rank() == 0 && !options.json.empty()) {
            write_whole_file(options.json, to_json(record).dump(2) + "\n");
        }
    });
    if (trainer.steps_done() < last) {
        reporter->say(text("stopped on request after step ", trainer.steps_done(), " of ", last,
                           ": go on with --resume"));
    }
    return trainer.steps_done() >= last;
}

}  // namespace nearstep::train
