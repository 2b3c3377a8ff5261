#include "train/compare_table.hpp"

#include "base/statistics.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdio>

namespace nearstep::train {

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

std::optional<double> speedup(const Compared* base, const Compared& one) {
    return base == nullptr ? std::nullopt
                           : std::optional(total(base->seconds) / total(one.seconds));
}

std::optional<double> predicted_speedup(const Compared* base, const Compared& one) {
    return base == nullptr || !base->predicted || !one.predicted
               ? std::nullopt
               : std::optional(total(*base->predicted) / total(*one.predicted));
}

std::string cell(const char* format, std::optional<double> value) {
    if (!value) {
        return "-";
    }
    std::array<char, 32> digits{};
    std::snprintf(digits.data(), digits.size(), format, *value);
    return digits.data();
}

std::string padded(const std::string& word, std::size_t width) {
    return std::string(width - std::min(width, word.size()), ' ') + word;
}

nlohmann::json seconds_json(const PhaseSeconds& seconds) {
    return {{"forward", seconds.forward},
            {"backward", seconds.backward},
            {"update", seconds.update},
            {"total", total(seconds)}};
}

nlohmann::json json_of(std::optional<double> value) {
    return value ? nlohmann::json(*value) : nlohmann::json();
}

}  // namespace

double total(const PhaseSeconds& seconds) {
    return seconds.forward + seconds.backward + seconds.update - seconds.hidden;
}

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
    return {summary_of(forward).median, summary_of(backward).median, summary_of(update).median};
}

std::string phase_table(const std::vector<Compared>& all) {
    std::size_t width = 6;
    for (const Compared& one : all) {
        width = std::max(width, one.label.size());
    }
    std::string out =
        "Seconds per step (medians, the first step left out) and speed-up over base with as many "
        "devices and\nwith the fewest; predicted: from the rates of the links and the compute "
        "measured without them\n  " +
        padded("column", width) +
        "  devices  forward  backward + gradients  update   total  over base  over first base"
        "   predicted: backward  update   total  over base  loss of the last step\n";
    const Compared* first = find_base(all, 0);
    for (const Compared& one : all) {
        const PhaseSeconds& seconds = one.seconds;
        const Compared* base = find_base(all, one.record.facts.devices);
        const auto predicted = [&one](auto value_of) {
            return one.predicted ? std::optional<double>(value_of(*one.predicted)) : std::nullopt;
        };
        out +=
            "  " + padded(one.label, width) + padded(std::to_string(one.record.facts.devices), 9) +
            padded(cell("%.3f", seconds.forward), 9) + padded(cell("%.3f", seconds.backward), 22) +
            padded(cell("%.3f", seconds.update), 8) + padded(cell("%.3f", total(seconds)), 8) +
            padded(cell("%.2fx", speedup(base, one)), 11) +
            padded(cell("%.2fx", speedup(first, one)), 17) +
            padded(cell("%.3f", predicted([](const auto& p) { return p.backward; })), 22) +
            padded(cell("%.3f", predicted([](const auto& p) { return p.update; })), 8) +
            padded(cell("%.3f", predicted([](const auto& p) { return total(p); })), 8) +
            padded(cell("%.2fx", predicted_speedup(base, one)), 11) +
            padded(cell("%.6f", one.record.steps.back().loss), 23) + "\n";
    }
    return out;
}

nlohmann::json to_json(const std::vector<Compared>& all) {
    nlohmann::json summaries = nlohmann::json::array();
    for (const Compared& one : all) {
        const Compared* base = find_base(all, one.record.facts.devices);
        nlohmann::json summary = to_json(one.record);
        summary["column"] = one.label;
        summary["state"] = one.record.run.csd.state;
        summary["codec"] = one.record.run.compress.codec;
        summary["phases_s"] = seconds_json(one.seconds);
        summary["speedup_over_base"] = json_of(speedup(base, one));
        summary["speedup_over_first_base"] = json_of(speedup(find_base(all, 0), one));
        if (one.predicted) {
            summary["predicted_s"] = seconds_json(*one.predicted);
            summary["predicted_speedup_over_base"] = json_of(predicted_speedup(base, one));
        }
        summaries.push_back(summary);
    }
    return summaries;
}

}  // namespace nearstep::train
