// Words a comparison of modes. Used by the command `compare`.
#include "report/compare_table.hpp"

#include "base/formatted.hpp"
#include "base/statistics.hpp"
#include "report/summary.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace nearstep::report {

namespace {

// The run of the plain column `base` with `devices` devices; 0: the one with the fewest.
const Compared* find_base(const std::vector<Compared>& all, int devices) {
    const Compared* found = nullptr;
    for (const Compared& one : all) {
        if (one.label == config::name_of(config::Mode::base) &&
            (devices == 0 || one.record.facts.devices == devices) &&
            (found == nullptr || one.record.facts.devices < found->record.facts.devices)) {
            found = &one;
        }
    }
    return found;
}

std::optional<double> ratio(std::optional<double> seconds, std::optional<double> of) {
    return seconds && of ? std::optional(*seconds / *of) : std::nullopt;
}

std::optional<double> total(const std::optional<PhaseSeconds>& seconds) {
    return seconds ? std::optional(seconds->total()) : std::nullopt;
}

// Speed-ups over `base`; none without it, or without a prediction.
std::optional<double> speedup(const Compared* base, const Compared& one) {
    return base == nullptr ? std::nullopt : ratio(base->seconds.total(), one.seconds.total());
}

std::optional<double> predicted_speedup(const Compared* base, const Compared& one) {
    return base == nullptr ? std::nullopt : ratio(total(base->predicted), total(one.predicted));
}

// Writes the value right-aligned.
std::string cell(int width, const char* format, std::optional<double> value) {
    const std::string word = value ? formatted(format, *value) : "-";
    return formatted("%*s", width, word.c_str());
}

nlohmann::json phases_json(const PhaseSeconds& seconds) {
    return {{"forward", seconds.forward},
            {"backward", seconds.backward},
            {"update", seconds.update},
            {"total", seconds.total()}};
}

nlohmann::json json_of(std::optional<double> value) {
    return value ? nlohmann::json(*value) : nlohmann::json();
}

}  // namespace

PhaseSeconds median_seconds(const std::vector<StepReport>& steps) {
    const std::size_t first = steps.size() > 1 ? 1 : 0;
    const auto median = [&](double PhaseSeconds::*phase) {
        std::vector<double> values;
        for (std::size_t i = first; i < steps.size(); ++i) {
            values.push_back(steps[i].seconds.*phase);
        }
        return summary_of(values).median;
    };
    return {median(&PhaseSeconds::forward), median(&PhaseSeconds::backward),
            median(&PhaseSeconds::update)};
}

std::string phase_table(const std::vector<Compared>& all) {
    std::size_t most = 6;
    for (const Compared& one : all) {
        most = std::max(most, one.label.size());
    }
    const int width = static_cast<int>(most);
    std::string out = formatted(
        "Seconds per step (medians, the first step left out) and speed-up over base with as many "
        "devices and\nwith the fewest; predicted: from the rates of the links and the compute "
        "measured without them\n  %*s  devices  forward  backward + gradients  update   total  "
        "over "
        "base  over first base   predicted: backward  update   total  over base  loss of the last "
        "step\n",
        width, "column");
    const Compared* first = find_base(all, 0);
    for (const Compared& one : all) {
        const Compared* base = find_base(all, one.record.facts.devices);
        const auto predicted = [&one](double PhaseSeconds::*phase) {
            return one.predicted ? std::optional((*one.predicted).*phase) : std::nullopt;
        };
        out += formatted("  %*s%9d", width, one.label.c_str(), one.record.facts.devices) +
               cell(9, "%.3f", one.seconds.forward) + cell(22, "%.3f", one.seconds.backward) +
               cell(8, "%.3f", one.seconds.update) + cell(8, "%.3f", one.seconds.total()) +
               cell(11, "%.2fx", speedup(base, one)) + cell(17, "%.2fx", speedup(first, one)) +
               cell(22, "%.3f", predicted(&PhaseSeconds::backward)) +
               cell(8, "%.3f", predicted(&PhaseSeconds::update)) +
               cell(8, "%.3f", total(one.predicted)) +
               cell(11, "%.2fx", predicted_speedup(base, one)) +
               cell(23, "%.6f", one.record.steps.back().loss) + "\n";
    }
    return out;
}

nlohmann::json to_json(const std::vector<Compared>& all) {
    nlohmann::json summaries = nlohmann::json::array();
    for (const Compared& one : all) {
        const Compared* base = find_base(all, one.record.facts.devices);
        nlohmann::json summary = to_json(one.record);
        summary["column"] = one.label;
        summary["state"] = nearstep::name_of(one.record.run.csd.state);
        summary["codec"] = config::name_of(one.record.run.compress.codec);
        summary["phases_s"] = phases_json(one.seconds);
        for (const StepReport& step : one.record.steps) {
            summary["each_step_s"].push_back(step.seconds.total());
        }
        summary["speedup_over_base"] = json_of(speedup(base, one));
        summary["speedup_over_first_base"] = json_of(speedup(find_base(all, 0), one));
        if (one.predicted) {
            summary["predicted_s"] = phases_json(*one.predicted);
            summary["predicted_speedup_over_base"] = json_of(predicted_speedup(base, one));
        }
        summaries.push_back(summary);
    }
    return summaries;
}

}  // namespace nearstep::report
