#include "train/run_lines.hpp"

#include "base/descriptor.hpp"
#include "base/error.hpp"
#include "base/units.hpp"
#include "base/version.hpp"
#include "csd/engine.hpp"
#include "engine/checkpoint_folder.hpp"
#include "engine/site_links.hpp"
#include "mpi/session.hpp"
#include "store/folder.hpp"
#include "train/prediction.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace nearstep::train {

namespace {

// Three significant digits.
std::string rounded(double value) {
    std::array<char, 32> digits{};
    std::snprintf(digits.data(), digits.size(), "%.3g", value);
    return digits.data();
}

// "1 rank", "2 ranks".
std::string counted(int count, const std::string& noun) {
    return text(count, " ", noun, count == 1 ? "" : "s");
}

// "runs/state", or "/mnt/a, /mnt/b and 2 more folders".
std::string describe_folders(const std::vector<std::string>& folders) {
    std::string out = folders.front();
    if (folders.size() > 1) {
        out += ", " + folders[1];
    }
    return folders.size() > 2 ? text(out, " and ", folders.size() - 2, " more folders") : out;
}

std::string describe_state(const RunRecord& record) {
    const config::Run& run = record.run;
    const int devices = record.facts.devices;
    const std::string place = text(run.csd.state, " in ", describe_folders(run.csd.path));
    const std::string moved = human_bytes(expected_storage_bytes(record));
    if (run.mode == config::Mode::base) {
        return text("state: ", place, ", updated by the host; a step reads and writes ", moved,
                    " of state and gradients on ", counted(devices, "plain drive"));
    }
    return text("state: ", place, ", updated by ",
                counted(devices, run.csd.device == "xrt" ? "card" : "emulated device"),
                "; a step reads and writes ", moved, " there; gradients come as ",
                run.compress.codec, ", ", rounded(record.facts.handed_bytes_per_parameter),
                " bytes per parameter");
}

std::string describe_steps(const RunRecord& record, std::int64_t done, std::int64_t last) {
    const std::int64_t left = std::max<std::int64_t>(last - done, 0);
    if (left == 0) {
        return text("steps: all ", last, " are done");
    }
    std::string out =
        text("steps ", done + 1, " to ", last, " of ",
             static_cast<std::int64_t>(record.run.train.global_batch) * record.run.model.context,
             " tokens each");
    const SpeedOfLight::Least least = record.light->least();
    if (least.bound != SpeedOfLight::Bound::none) {
        out += text(": ", rounded(least.seconds), " s per step at the speed of light (sol) of ",
                    name_of(least.bound), " as known now, ",
                    describe_duration(least.seconds * static_cast<double>(left)), " in all");
    }
    return out;
}

bool is_in_memory(const std::string& folder) {
    const Descriptor opened(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    return opened && store::lies_in_memory(opened.get());
}

std::string describe_durability(const config::Run& run) {
    if (run.csd.durability == "step") {
        const bool has_memory =
            run.csd.memory_gb > 0 || std::ranges::any_of(run.csd.path, is_in_memory);
        return text(
            "crash: every step survives",
            has_memory ? " a killed process, but no reboot, since state lies in memory" : "",
            "; go on with --resume");
    }
    if (run.csd.durability == "none") {
        return "crash: it loses the run (csd.durability = \"none\")";
    }
    return run.checkpoint.every > 0
               ? text("crash: the run goes back to the last checkpoint; one comes every ",
                      run.checkpoint.every, " steps in ", config::checkpoint_folder(run))
               : text("crash: it loses the run until the checkpoint at its end in ",
                      config::checkpoint_folder(run), "; set checkpoint.every for more");
}

}  // namespace

std::vector<std::string> head_lines(const Trainer& trainer, const RunRecord& record,
                                    std::int64_t last) {
    const config::Run& run = record.run;
    return {text("nearstep ", version(), ", commit ", commit(), ": config ", run.name, " on site ",
                 run.site, ", mode ", config::name_of(run.mode)),
            text("model: ", run.model.architecture, " with ",
                 rounded(static_cast<double>(record.parameters) / 1e6), " M parameters in ",
                 name_of(run.model.dtype), " on ", counted(record.ranks, "rank"), " of ",
                 counted(record.facts.nodes, "node"), "; ", trainer.describe_model()),
            describe_state(record), describe_steps(record, trainer.steps_done(), last),
            describe_durability(run)};
}

std::vector<std::string> path_lines(const Trainer& trainer, const config::Run& run) {
    const engine::EngineFacts& facts = trainer.engine().facts();
    const bool is_on_cards = run.csd.device == "xrt" && run.mode != config::Mode::base;
    std::vector<std::string> lines = {text(mpi::library_version(), "; engine ",
                                           is_on_cards ? "of the cards, on the host " : "",
                                           csd::best_engine().name)};
    if (!facts.io.empty()) {
        lines.push_back(text("state of rank 0: ", facts.io, " per device"));
    }
    if (run.compress.codec != "dense") {
        lines.push_back(describe_gradients(run, facts.payload_bytes_per_parameter));
    }
    lines.insert(lines.end(), facts.lines.begin(), facts.lines.end());
    if (trainer.gpu() != nullptr) {
        lines.push_back(model::describe(trainer.gpu()->plan()));
    }
    return lines;
}

std::string closing_lines(const RunRecord& record, std::int64_t steps_done) {
    std::string out = text("trained to step ", steps_done);
    if (record.steps.empty()) {
        return record.checkpoint.empty() ? out : text(out, "; checkpoint ", record.checkpoint);
    }
    const double step_s = record.seconds / static_cast<double>(record.steps.size());
    std::array<char, 32> loss{};
    std::snprintf(loss.data(), loss.size(), "%.4f", record.steps.back().loss);
    out += text(": loss ", loss.data());
    if (!record.checkpoint.empty()) {
        out += text("; checkpoint ", record.checkpoint);
    } else if (record.run.csd.durability == "step") {
        out += text("; the state is in ", describe_folders(record.run.csd.path));
    }
    out += text("\nspeed: ", std::llround(tokens_per_second(record)), " tokens/s, ",
                rounded(step_s), " s per step");
    const SpeedOfLight::Least least = record.light->least();
    if (least.bound != SpeedOfLight::Bound::none) {
        out += text("; ", rounded(100 * least.seconds / step_s), " % of the speed of light, which ",
                    name_of(least.bound), " bounds");
    }
    return text(out, "\n", describe(record.endurance));
}

std::string describe_share(const SpeedOfLight::Least& least, double step_s) {
    if (least.bound == SpeedOfLight::Bound::none) {
        return "";
    }
    const double percent = 100 * least.seconds / step_s;
    std::array<char, 32> digits{};
    std::snprintf(digits.data(), digits.size(), percent < 9.95 ? "%.1f" : "%.0f", percent);
    return text("  sol ", digits.data(), " % (", name_of(least.bound), ")");
}

std::string describe_duration(double seconds) {
    const long long all = std::llround(seconds);
    std::array<char, 32> out{};
    if (all >= 3600) {
        std::snprintf(out.data(), out.size(), "%lld:%02lld:%02lld", all / 3600, all / 60 % 60,
                      all % 60);
    } else {
        std::snprintf(out.data(), out.size(), "%lld:%02lld", all / 60, all % 60);
    }
    return out.data();
}

}  // namespace nearstep::train
