// Runs the steps of `nearstep train` from start to end. Used by the command train.
#include "train/loop.hpp"

#include "base/error.hpp"
#include "base/output_file.hpp"
#include "base/stop_request.hpp"
#include "base/stopwatch.hpp"
#include "config/load.hpp"
#include "engine/placement/placed_settings.hpp"
#include "engine/state/checkpoint_folder.hpp"
#include "model/compute_device.hpp"
#include "model/gpu_peak.hpp"
#include "mpi/mpi_library.hpp"
#include "plan/link_rates.hpp"
#include "report/lines.hpp"
#include "report/prediction.hpp"
#include "report/reporter.hpp"
#include "report/summary.hpp"
#include "train/corpus.hpp"
#include "train/timeline_file.hpp"
#include "train/trainer.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <map>
#include <optional>

namespace nearstep::train {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// Ranks measure at the same time, so that those that share cores or a GPU get their part of it.
double measure_operations(const mpi::Communicator& world, const Trainer& trainer,
                          const config::RunSettings& run) {
    std::optional<double> mine = trainer.gpu() != nullptr ? trainer.gpu()->peak_operations()
                                 : trainer.computes()     ? std::nullopt
                                                          : std::optional(0.0);
    world.barrier();
    world.together([&] {
        if (!mine) {
            mine = model::measure_product_rate(
                trainer.compute_device(),
                model::compute_format(run.model, trainer.compute_device()));
        }
    });
    double all = *mine;
    world.sum(std::span(&all, 1));
    return all;
}

report::SpeedOfLight expect_speed(const mpi::Communicator& world, const Trainer& trainer,
                                  const report::RunRecord& record) {
    const engine::StateTransfer first = trainer.engine().first_transfer();
    const double operations =
        model::operations_per_token(record.run.model, record.parameters) * record.tokens_per_step();
    return {record.run.mode,
            {.operations = operations, .state_bytes = report::expected_storage_bytes(record)},
            {.operations = measure_operations(world, trainer, record.run),
             .state_bytes = first.seconds > 0 ? first.bytes / first.seconds : 0,
             .update_s = report::least_update_seconds(record)}};
}

void say_head(report::Reporter& reporter, const Trainer& trainer, const report::RunRecord& record,
              const std::vector<std::string>& start, const RunOptions& options, std::int64_t last) {
    std::vector<std::string> lines =
        report::head_lines(record, trainer.describe_model(), trainer.steps_done(), last);
    if (options.shows_traffic) {
        const std::vector<std::string> paths =
            report::path_lines(record, mpi::describe(mpi::describe_library()));
        lines.insert(lines.end(), paths.begin(), paths.end());
        if (trainer.gpu() != nullptr) {
            lines.push_back(model::describe(trainer.gpu()->plan()));
        }
    } else if (record.run.link.are_shaped()) {
        lines.push_back(plan::describe_links(record.run));
    }
    lines.insert(lines.end(), start.begin(), start.end());
    for (const std::string& line : lines) {
        reporter.say(line);
    }
}

// Calls begin() and adds lines about the notice.
engine::BeginReport begin_and_describe(Trainer& trainer, const config::RunSettings& run,
                                       const RunOptions& options) {
    engine::BeginReport begun = trainer.begin();
    const engine::CheckpointTime time =
        run.csd.durability == config::Durability::checkpoint
            ? trainer.engine().expect_checkpoint(config::checkpoint_folder(run))
            : engine::CheckpointTime();
    const std::vector<std::string> notice = engine::describe_notice(run, time, options.notice_s);
    begun.lines.insert(begun.lines.end(), notice.begin(), notice.end());
    return begun;
}

// Whether the run finished or stopped on request.
enum class Ending { finished, stopped };

// Whether all ranks count what was written to their devices: in the first steps, then rarely, since
// all ranks take part.
bool is_wear_due(std::int64_t done) {
    constexpr std::int64_t kEvery = 64;
    return done % kEvery == 0 ||
           (done < kEvery && std::has_single_bit(static_cast<std::uint64_t>(done)));
}

report::RunDrives drives_of(const mpi::Communicator& world, const Trainer& trainer) {
    const engine::PlacedSettings& settings = trainer.engine().settings();
    std::vector<std::string> hosts;
    hosts.reserve(static_cast<std::size_t>(world.size()));
    for (int rank = 0; rank < world.size(); ++rank) {
        hosts.push_back(trainer.engine().host_of(rank));
    }
    return {config::devices_per_rank(settings, world.size()),
            config::drives_per_rank(settings, world.size()), hosts};
}

// A step's metrics and evaluations come before the next step's commit, and before its own if the
// engine commits after the update. So a step that a crash undid is repeated with them, and at most
// the last committed one lacks them. After a request to stop, nothing is evaluated and no
// checkpoint is due.
void run_steps(Trainer& trainer, report::Reporter& reporter, report::RunRecord& record,
               std::int64_t last, Ending& ending) {
    const config::RunSettings& run = record.run;
    const std::vector<std::uint64_t> written = trainer.engine().written_bytes();
    const double committed = trainer.engine().commit_seconds();
    const auto ended = [&](const StepReport& report) {
        record.steps.push_back(report);
        if (!report.is_skipped) {
            record.light->note(report.traffic, report.seconds.update);
        }
        reporter.step(report, last, *record.light);
    };
    const auto is_due = [](std::int64_t every, std::int64_t done) {
        return every > 0 && done % every == 0;
    };
    while (trainer.steps_done() < last && ending == Ending::finished) {
        auto begin = Clock::now();
        bool is_stop_requested = trainer.step(ended).is_stop_requested;
        const std::int64_t done = trainer.steps_done();
        const bool goes_on = done < last && !is_stop_requested;
        const bool evaluates = goes_on && is_due(run.train.evaluate_every, done);
        const bool saves = goes_on && run.csd.durability != config::Durability::none &&
                           is_due(run.checkpoint.every, done);
        if (goes_on && !evaluates && !saves) {
            if (is_wear_due(done)) {
                reporter.written(trainer.engine().written_bytes());
            }
            record.seconds += seconds_since(begin);
            continue;  // the next step ends it
        }
        const StepReport report = trainer.finish();
        record.seconds += seconds_since(begin);
        ended(report);
        if (evaluates) {
            const std::optional<HeldOutLoss> loss = trainer.evaluate();
            is_stop_requested = !loss;
            if (loss) {
                reporter.heldout(done, *loss);
            }
        }
        begin = Clock::now();
        trainer.engine().commit();
        record.seconds += seconds_since(begin);
        reporter.written(trainer.engine().written_bytes());
        if (is_stop_requested) {
            ending = Ending::stopped;
        } else if (saves) {
            record.checkpoint = trainer.engine().save(config::checkpoint_folder(run));
        }
    }
    record.commit_seconds = trainer.engine().commit_seconds() - committed;
    record.endurance =
        report::measure_endurance(written, trainer.engine().written_bytes(), record.steps.size(),
                                  record.seconds, run.csd.rated_tbw);
    reporter.end_progress();
}

// Fills a record with what is known before the first step.
report::RunRecord begin_record(const mpi::Communicator& world, const Trainer& trainer,
                               const config::RunSettings& run, const plan::Calibration& calibration,
                               const report::StartSeconds& start) {
    report::RunRecord record{.run = run,
                             .ranks = world.size(),
                             .facts = trainer.engine().facts(),
                             .parameters = trainer.parameters(),
                             .start = start,
                             .calibration = calibration};
    record.expected = report::expect_of_links(record);
    record.light = expect_speed(world, trainer, record);
    return record;
}

// Everything that is read and computed after the run's steps are safe.
void look_at_result(Trainer& trainer, report::Reporter& reporter, const RunOptions& options,
                    report::RunRecord& record, Ending& ending) {
    record.heldout_loss = trainer.evaluate();
    if (!record.heldout_loss) {
        ending = Ending::stopped;
        return;
    }
    reporter.heldout(trainer.steps_done(), *record.heldout_loss);
    record.masters_digest = trainer.engine().masters_digest();
    if (options.sample_tokens > 0) {
        reporter.say("sample:\n" + options.prompt +
                     trainer.sample(options.prompt, options.sample_tokens));
    }
}

// The slowest rank of a step, and whether the step took long because of it.
struct Straggler {
    Slowest slowest;
    bool delays_step = false;
};

// Names a rank that was the slowest in most of the steps; empty if there is none. `words` go on
// behind its name, and `end` behind how often that was and how much longer it took than `others`.
std::string slow_rank_line(const Trainer& trainer, const std::vector<Straggler>& in_steps,
                           const char* what, const char* words, const char* end,
                           const char* others = "the median rank") {
    std::map<int, std::vector<double>> slow;  // how slow each rank was, where it was the slowest
    for (const Straggler& one : in_steps) {
        if (one.delays_step && one.slowest.times > report::kSlow) {
            slow[one.slowest.rank].push_back(one.slowest.times);
        }
    }
    for (auto& [rank, times] : slow) {
        if (times.size() > 2 && 2 * times.size() > in_steps.size()) {
            const auto median = times.begin() + std::ssize(times) / 2;
            std::ranges::nth_element(times, median);
            return text(what, "rank ", rank, " on host ", trainer.engine().host_of(rank), words,
                        " the longest in ", times.size(), " of ", in_steps.size(), " steps, ",
                        std::round(10 * *median) / 10, " times as long as ", others, end);
        }
    }
    return "";
}

// The ranks that the others waited for: because of what one computed, of its devices and of its
// link. What comes late from a rank that is slow by itself says nothing of its link.
std::vector<std::string> slow_rank_lines(const Trainer& trainer,
                                         const std::vector<StepReport>& steps) {
    constexpr double kLeastDelay = 0.1;  // of a step
    std::vector<Straggler> computed;
    std::vector<Straggler> devices;
    std::vector<Straggler> drives;
    std::vector<Straggler> nccl;
    std::vector<Straggler> senders;
    std::vector<Straggler> receivers;
    for (const StepReport& step : steps) {
        const double least = kLeastDelay * step.seconds.total();
        const bool update_delays = step.seconds.update - step.seconds.hidden > least;
        const bool network_delays = update_delays && step.network_s > least;
        const auto is_slow = [&](const Slowest& slowest, int rank) {
            return slowest.times > report::kSlow && slowest.rank == rank;
        };
        const int sender = step.sender.rank;
        computed.push_back({step.computed, true});
        devices.push_back({step.devices, update_delays});
        drives.push_back({step.drives, update_delays});
        nccl.push_back({step.nccl, (step.nccl.times - 1) * step.nccl_s > least});
        senders.push_back({step.sender, network_delays && !is_slow(step.computed, sender) &&
                                            !is_slow(step.devices, sender)});
        receivers.push_back({step.receiver, network_delays});
    }
    constexpr const char* kLink = ": measure its link with nearstep bench network";
    std::vector<std::string> lines{
        slow_rank_line(trainer, computed, "", " computed", ": the others waited for it"),
        slow_rank_line(trainer, devices, "the devices of ", " updated their state",
                       ": the others waited for it"),
        slow_rank_line(trainer, drives, "the drives of ", " moved their state",
                       ": look for one that is throttled, full or shared", "in the first steps"),
        slow_rank_line(trainer, nccl, "other GPUs waited in NCCL for that of ", "",
                       ": look at its clocks and its link", "it was there itself"),
        slow_rank_line(trainer, senders, "parameters from ", " came late and were waited for",
                       kLink)};
    if (lines.back().empty()) {
        lines.back() = slow_rank_line(trainer, receivers, "", " waited for parameters", kLink);
    }
    std::erase(lines, "");
    return lines;
}

void say_end(report::Reporter& reporter, const report::RunRecord& record, const RunOptions& options,
             const Trainer& trainer) {
    for (const std::string& slow : slow_rank_lines(trainer, record.steps)) {
        reporter.say(slow);
    }
    if (options.shows_traffic && !record.steps.empty()) {
        for (const std::string& lines : report::traffic_lines(record)) {
            reporter.say(lines);
        }
    }
    reporter.say(report::closing_lines(record, trainer.steps_done()));
}

void check_before(const mpi::Communicator& world, const config::RunSettings& run,
                  const RunOptions& options) {
    config::validate_for_ranks(run, world.size());
    world.on_rank_0([&] {
        check_writable(options.json);
        check_writable(options.trace);
    });
}

// Writes a checkpoint unless the state is already safe.
void save_at_end(Trainer& trainer, std::int64_t last_checkpoint, Ending ending,
                 report::RunRecord& record) {
    const config::RunSettings& run = record.run;
    // A durable step needs no checkpoint to survive a stop.
    const bool is_safe =
        trainer.steps_done() == last_checkpoint ||
        (ending == Ending::stopped && run.csd.durability == config::Durability::step);
    if (run.csd.durability != config::Durability::none && !is_safe) {
        record.checkpoint = trainer.engine().save(config::checkpoint_folder(run));
    }
}

}  // namespace

bool train(const mpi::Communicator& world, const config::RunSettings& run,
           const RunOptions& options) {
    note_stop_requests();
    check_before(world, run, options);
    const data::Corpus corpus = load_corpus(world, run);
    if (options.sample_tokens > 0 && corpus.tokenizer) {
        corpus.tokenizer->encode(options.prompt);  // throws early if it cannot
    }
    std::optional<trace::Timeline> timeline;
    if (!options.trace.empty()) {
        timeline.emplace();
    }
    Trainer trainer(world, run, corpus,
                    {.request = options.request,
                     .granted_devices = options.granted_devices,
                     .fault_plan = options.fault_plan,
                     .timeline = timeline ? &*timeline : nullptr});
    std::optional<report::Reporter> reporter;
    world.together(
        [&] { reporter.emplace(world.rank() == 0, run, trainer.parameters(), options.metrics); });
    report::StartSeconds start_seconds{.search = trainer.engine().search_seconds()};
    Stopwatch watch;
    const engine::BeginReport begun = begin_and_describe(trainer, run, options);
    start_seconds.begin = watch.lap();
    report::RunRecord record =
        begin_record(world, trainer, run, options.calibration, start_seconds);
    const std::int64_t last =
        run.train.stop_at > 0 ? std::min(run.train.stop_at, run.train.steps) : run.train.steps;
    say_head(*reporter, trainer, record, begun.lines, options, last);
    reporter->begin(trainer.steps_done(), last, drives_of(world, trainer));
    reporter->written(trainer.engine().written_bytes());
    begin_timeline(world, timeline);
    Ending ending = world.agree(!is_stop_requested()) ? Ending::finished : Ending::stopped;
    run_steps(trainer, *reporter, record, last, ending);
    save_at_end(trainer, begun.checkpoint_step, ending, record);
    if (timeline) {
        record.lanes = lane_shares(world, *timeline, record.seconds);
        reporter->say(write_timeline(world, *timeline, *record.lanes, options.trace));
    }
    record.vector_bytes = trainer.engine().vector_bytes();
    record.gpu = trainer.gpu_use(record.steps.size());
    record.network_sent_bytes = trainer.engine().network_sent_bytes();
    for (int rank = 0; rank < world.size(); ++rank) {
        record.hosts.push_back(trainer.engine().host_of(rank));
    }
    if (ending == Ending::finished) {
        look_at_result(trainer, *reporter, options, record, ending);
    }
    say_end(*reporter, record, options, trainer);
    world.on_rank_0([&] {
        write_whole_file(options.json, report::text_of(report::to_json(record)));
        write_whole_file(options.accounts, report::account_lines(record, trainer.steps_done()));
    });
    reporter->end(trainer.steps_done(), ending == Ending::finished);
    if (ending == Ending::stopped) {
        reporter->say(text("stopped on request after step ", trainer.steps_done(), " of ", last,
                           ": go on with --resume"));
    }
    return ending == Ending::finished;
}

}  // namespace nearstep::train
