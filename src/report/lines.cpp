// Words what a run is about to do and what it did. Used by the trainer, and by the reporter for its
// progress.
#include "report/lines.hpp"

#include "base/descriptor.hpp"
#include "base/error.hpp"
#include "base/formatted.hpp"
#include "base/units.hpp"
#include "base/version.hpp"
#include "csd/update_engine.hpp"
#include "report/prediction.hpp"
#include "report/summary.hpp"
#include "report/traffic_report.hpp"
#include "store/storage_folder.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace nearstep::report {

namespace {

// "runs/state", or "/mnt/a, /mnt/b and 2 more folders".
std::string describe_folders(const std::vector<std::string>& folders) {
    std::string out = folders.front();
    if (folders.size() > 1) {
        out += ", " + folders[1];
    }
    return folders.size() > 2 ? text(out, " and ", folders.size() - 2, " more folders") : out;
}

std::string describe_state(const RunRecord& record) {
    const config::RunSettings& run = record.run;
    const int devices = record.facts.devices;
    const std::string place =
        text(nearstep::name_of(run.csd.state), " in ", describe_folders(run.csd.path));
    const std::string moved = human_bytes(expected_storage_bytes(record));
    if (run.mode == config::Mode::base) {
        return text("state: ", place, ", updated by the host; a step reads and writes ", moved,
                    " of state and gradients on ", counted(devices, "plain drive"));
    }
    return text(
        "state: ", place, ", updated by ",
        counted(devices, run.csd.device == config::DeviceKind::xrt ? "card" : "emulated device"),
        "; a step reads and writes ", moved, " there; gradients come as ",
        config::name_of(run.compress.codec), ", ",
        three_digits(record.facts.handover_bytes_per_parameter), " bytes per parameter");
}

std::string describe_steps(const RunRecord& record, std::int64_t done, std::int64_t last) {
    const std::int64_t left = std::max<std::int64_t>(last - done, 0);
    if (left == 0) {
        return text("steps: all ", last, " are done");
    }
    return text("steps ", done + 1, " to ", last, " of ", std::llround(record.tokens_per_step()),
                " tokens each");
}

bool is_in_memory(const std::string& folder) {
    const Descriptor opened(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    return opened && store::lies_in_memory(opened.get());
}

std::string describe_durability(const RunRecord& record) {
    const config::RunSettings& run = record.run;
    if (run.csd.durability == config::Durability::step) {
        const bool has_memory =
            record.facts.memory_share > 0 || std::ranges::any_of(run.csd.path, is_in_memory);
        return text(
            "crash: every step survives",
            has_memory ? " a killed process, but no reboot, since state lies in memory" : "",
            "; go on with --resume");
    }
    if (run.csd.durability == config::Durability::none) {
        return "crash: it loses the run (csd.durability = \"none\")";
    }
    return run.checkpoint.every > 0
               ? text("crash: the run goes back to the last checkpoint; one comes every ",
                      run.checkpoint.every, " steps in ", config::checkpoint_folder(run))
               : text("crash: it loses the run until the checkpoint at its end in ",
                      config::checkpoint_folder(run), "; set checkpoint.every for more");
}

// "gradients: topk, keeps 1 % of the elements in a volume of 0.04004 bytes per parameter, ...".
std::string describe_gradients(const RunRecord& record) {
    const config::CompressSettings& compress = record.run.compress;
    std::string line = formatted(
        "gradients: %s, keeps %.4g %% of the elements in a volume of %.4g bytes per parameter, "
        "%.4g %% of the dense %s",
        config::name_of(compress.codec), 100 * kept_share(record.run),
        record.facts.payload_bytes_per_parameter, 100 * share_of_dense(record),
        name_of(record.run.model.dtype));
    if (compress.rounding == arith::Rounding::stochastic) {
        line += ", rounds stochastically";
    }
    if (compress.error_feedback) {
        line += ", feeds back what is lost";
    }
    return compress.warmup_steps > 0
               ? text(line, ", dense for the first ", compress.warmup_steps, " steps")
               : line;
}

// A sentence on how many updates began on a guess; empty if none did.
std::string describe_guesses(const RunRecord& record) {
    const std::int64_t wrong = guesses_in(record.steps, trace::Guess::wrong);
    const std::int64_t all = guesses_in(record.steps, trace::Guess::right) + wrong;
    return all == 0 ? ""
                    : text("updates of ", all, " of ", record.steps.size(),
                           " steps began in backward on the guess that the step is not clipped; ",
                           wrong, " were done again");
}

// A step's means beside the expected times; empty if nothing is expected.
std::string describe_expected(const RunRecord& record) {
    if (!record.expected) {
        return "";
    }
    const PhaseSeconds measured = mean_seconds(record.steps);
    std::string out = formatted(
        "update: %.4g s measured, %.4g s modelled from the rates of the links; "
        "backward: %.4g s measured, of which gradients take %.4g s, modelled",
        measured.update, record.expected->update, measured.backward, record.expected->backward);
    for (const std::string& line :
         plan::describe(record.calibration, record.run, record.facts.all_nodes())) {
        out += "\nmodelled with " + line;
    }
    return out;
}

std::string describe_storage_nodes(const RunRecord& record) {
    const int nodes = record.facts.storage_nodes;
    return nodes == 0 ? "" : text(" and ", counted(nodes, "storage node"));
}

}  // namespace

std::vector<std::string> head_lines(const RunRecord& record, const std::string& backend,
                                    std::int64_t done, std::int64_t last) {
    const config::RunSettings& run = record.run;
    return {
        text("nearstep ", version(), ", commit ", commit(), ": config ", run.name, " on site ",
             run.site, ", mode ", config::name_of(run.mode)),
        text("model: ", config::name_of(run.model.architecture), " with ",
             three_digits(static_cast<double>(record.parameters) / 1e6), " M parameters in ",
             name_of(run.model.dtype), " on ",
             counted(config::computing_ranks(run, record.ranks), "rank"), " of ",
             counted(record.facts.nodes, "node"), describe_storage_nodes(record), "; ", backend),
        describe_state(record), describe_steps(record, done, last), describe_durability(record)};
}

std::vector<std::string> path_lines(const RunRecord& record, const std::string& mpi) {
    const config::RunSettings& run = record.run;
    const bool is_on_cards =
        run.csd.device == config::DeviceKind::xrt && run.mode != config::Mode::base;
    std::vector<std::string> lines = {text(mpi, "; engine ",
                                           is_on_cards ? "of the cards, on the host " : "",
                                           csd::best_engine().name)};
    if (!record.facts.io.empty()) {
        lines.push_back(text("state of rank 0: ", record.facts.io, " per device"));
    }
    if (run.compress.codec != config::PayloadCodec::dense) {
        lines.push_back(describe_gradients(record));
    }
    lines.insert(lines.end(), record.facts.lines.begin(), record.facts.lines.end());
    return lines;
}

std::string closing_lines(const RunRecord& record, std::int64_t steps_done) {
    std::string out = text("trained to step ", steps_done);
    if (record.steps.empty()) {
        return record.checkpoint.empty() ? out : text(out, "; checkpoint ", record.checkpoint);
    }
    out += formatted(": loss %.4f", record.steps.back().loss);
    if (!record.checkpoint.empty()) {
        out += text("; checkpoint ", record.checkpoint);
    } else if (record.run.csd.durability == config::Durability::step) {
        out += text("; the state is in ", describe_folders(record.run.csd.path));
    }
    out += text("\nspeed: ", std::llround(record.tokens_per_second()), " tokens/s, ",
                three_digits(record.step_seconds()), " s per step");
    const SpeedOfLight::Least least = record.light->least();
    if (least.bound != SpeedOfLight::Bound::none) {
        out += text("; ", three_digits(100 * least.seconds / record.step_seconds()),
                    " % of the speed of light, which ", name_of(least.bound), " bounds");
    }
    return text(out, "\n", describe(record.endurance));
}

std::string account_lines(const RunRecord& record, std::int64_t steps_done) {
    const std::vector<double>& written = record.endurance.written_bytes;
    const double tokens = record.tokens_per_step() * static_cast<double>(record.steps.size());
    return text("step ", steps_done, "\ntokens ", std::llround(tokens), "\nseconds ",
                std::llround(record.seconds), "\nwritten_mb ",
                std::llround(std::accumulate(written.begin(), written.end(), 0.0) / 1e6), "\n");
}

std::vector<std::string> traffic_lines(const RunRecord& record) {
    std::vector<std::string> lines = {traffic_table({record}), describe_guesses(record),
                                      describe_deltas(record), describe_expected(record)};
    if (record.gpu) {
        lines.push_back(describe(*record.gpu, flop_utilisation(record)));
    }
    std::erase(lines, "");
    return lines;
}

std::string describe(const GpuUse& gpu, std::optional<double> utilisation) {
    const auto size = [](std::size_t bytes) { return human_bytes(static_cast<double>(bytes)); };
    std::string line =
        text("GPU ", gpu.name, ": ", size(gpu.most_bytes), " taken at most, ",
             size(gpu.most_tensor_bytes), " of it in use, ", size(gpu.plan.total_bytes()),
             " planned of ", size(gpu.plan.budget_bytes), "; a step moved ",
             size(gpu.parameter_step_bytes), " of parameters and ", size(gpu.input_step_bytes),
             " of blocks' inputs over the link");
    return utilisation
               ? text(line, "; model FLOP utilisation ", std::round(*utilisation * 1000) / 10, " %")
               : line;
}

std::string describe_share(const SpeedOfLight::Least& least, double step_s) {
    if (least.bound == SpeedOfLight::Bound::none) {
        return "";
    }
    const double percent = 100 * least.seconds / step_s;
    return formatted(percent < 9.95 ? "  sol %.1f %% (%s)" : "  sol %.0f %% (%s)", percent,
                     name_of(least.bound));
}

std::string describe_duration(double seconds) {
    const long long all = std::llround(seconds);
    return all >= 3600 ? formatted("%lld:%02lld:%02lld", all / 3600, all / 60 % 60, all % 60)
                       : formatted("%lld:%02lld", all / 60, all % 60);
}

}  // namespace nearstep::report
