// Prints progress and writes the metrics. Used by the trainer, on rank 0.
#include "report/reporter.hpp"

#include "base/error.hpp"
#include "base/formatted.hpp"
#include "base/version.hpp"
#include "base/wording.hpp"
#include "report/lines.hpp"
#include "report/summary.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <system_error>
#include <utility>

namespace nearstep::report {

namespace {

constexpr double kSecondsOfLines = 10;
constexpr double kSecondsOfRewriting = 0.1;
constexpr std::size_t kStepsOfRate = 32;

// Escape sequences of terminals (ECMA-48).
constexpr const char* kErasesLine = "\r\x1b[K";
constexpr const char* kBold = "\x1b[1m";
constexpr const char* kPlain = "\x1b[0m";

double seconds_between(std::chrono::steady_clock::time_point from,
                       std::chrono::steady_clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
}

// The lines that Reporter::begin() keeps. An incomplete last line is dropped.
std::string kept_lines(const std::string& path, std::int64_t done, std::int64_t last_step) {
    std::ifstream file(path);
    std::string kept;
    for (std::string line; std::getline(file, line);) {
        const auto json = nlohmann::json::parse(line, nullptr, false);
        if (!json.is_object() || !json.contains("step") || json["step"] > done ||
            json.contains("ended")) {
            continue;
        }
        if (!(json.contains("heldout_loss") && json["step"] >= last_step)) {
            kept += line + "\n";
        }
    }
    return kept;
}

}  // namespace

Reporter::Reporter(bool is_speaking, const config::RunSettings& run, std::size_t parameters,
                   const std::vector<std::string>& metrics)
    : is_speaking_(is_speaking), run_(run), parameters_(parameters) {
    for (const std::string& path : metrics) {
        const bool is_second =
            is_prometheus(path) ? prometheus_.has_value() : !metrics_path_.empty();
        if (is_second) {
            throw ConfigError(text("--metrics names two files of one kind, the second of which is ",
                                   on_one_line(path),
                                   ": name one for JSON lines, and one that ends "
                                   "in .prom."));
        }
        if (is_speaking_ && is_prometheus(path)) {
            prometheus_.emplace(run_, parameters_, path);
        } else if (is_speaking_) {
            metrics_ = LineOutput(metrics_path_ = path);
        }
    }
}

void Reporter::begin(std::int64_t done, std::int64_t last_step, const RunDrives& drives) {
    if (prometheus_) {
        prometheus_->begin(last_step, done > 0, drives);
    }
    if (metrics_.is_open()) {
        const nlohmann::json head = {{"commit", commit()},
                                     {"config", run_.name},
                                     {"site", run_.site},
                                     {"mode", config::name_of(run_.mode)},
                                     {"parameters", parameters_},
                                     {"last_step", last_step},
                                     {"has_shaped_links", run_.link.are_shaped()}};
        const bool continues = done > 0 && metrics_.is_regular();
        metrics_.begin(text_of(head, -1) +
                       (continues ? kept_lines(metrics_path_, done, last_step) : ""));
    }
    start_ = Clock::now();
    ends_.assign(1, start_);
}

bool Reporter::is_due(std::int64_t step, std::int64_t last_step) const {
    if (steps_ == 1 || step == last_step) {
        return true;
    }
    const Clock::time_point now = ends_.back();
    const double since = seconds_between(last_line_, now);
    return terminal_.columns > 0
               ? since >= kSecondsOfRewriting
               : since >= std::max(kSecondsOfLines, seconds_between(start_, now) / 10);
}

void Reporter::step(const StepReport& report, std::int64_t last_step, const SpeedOfLight& light) {
    if (!is_speaking_) {
        return;
    }
    ++steps_;
    ends_.push_back(Clock::now());
    if (metrics_.is_open()) {
        nlohmann::json line = to_json(report, parameters_);
        line["wall_s"] = seconds_between(ends_.at(ends_.size() - 2), ends_.back());
        add_metrics(text_of(line, -1));
    }
    if (prometheus_) {
        note_prometheus(
            prometheus_->step(report, seconds_between(ends_.at(ends_.size() - 2), ends_.back())));
    }
    if (ends_.size() > kStepsOfRate + 1) {
        ends_.pop_front();
    }
    if (report.is_skipped) {
        say(text("step ", report.step, " skipped: the gradient is not finite (loss scale ",
                 report.loss_scale, ")"));
    }
    if (is_due(report.step, last_step)) {
        last_line_ = ends_.back();
        show_progress(report, last_step, light);
    }
}

void Reporter::heldout(std::int64_t step, const HeldOutLoss& loss) {
    say(formatted(
        "step %lld  held-out loss %.4f nats per token, %.4f per byte (%.4f bits per byte)",
        static_cast<long long>(step), loss.nats_per_token, loss.nats_per_byte,
        loss.bits_per_byte()));
    if (metrics_.is_open()) {
        add_metrics(text_of({{"step", step},
                             {"heldout_loss", loss.nats_per_token},
                             {"heldout_nats_per_byte", loss.nats_per_byte}},
                            -1));
    }
    if (prometheus_) {
        prometheus_->heldout(loss);
    }
}

void Reporter::written(const std::vector<std::uint64_t>& of_devices) {
    if (prometheus_) {
        prometheus_->written(of_devices);
    }
}

void Reporter::note_prometheus(const std::string& reason) {
    if (!reason.empty() && !is_prometheus_old_) {
        is_prometheus_old_ = true;
        say(text("warning: metrics for Prometheus are old from here on: ", reason));
    }
}

void Reporter::end(std::int64_t step, bool is_finished) {
    if (metrics_.is_open()) {
        add_metrics(text_of({{"step", step}, {"ended", is_finished ? "finished" : "stopped"}}, -1));
    }
    if (prometheus_) {
        note_prometheus(prometheus_->end());
    }
}

void Reporter::add_metrics(const std::string& line) {
    const int code = metrics_.add(line);
    if (code != 0 && !has_lost_lines_) {
        has_lost_lines_ = true;
        say(text("warning: the metrics file ", metrics_path_, " lacks lines from here on (",
                 std::generic_category().message(code), "): free some space, or end the run and ",
                 "resume it with another --metrics"));
    }
}

void Reporter::say(const std::string& line) {
    if (is_speaking_) {
        std::printf("%s%s%s", is_line_open_ ? kErasesLine : "", line.c_str(),
                    line.ends_with('\n') ? "" : "\n");
        std::fflush(stdout);
        is_line_open_ = false;
    }
}

void Reporter::end_progress() {
    if (is_line_open_) {
        std::printf("\n");
        std::fflush(stdout);
        is_line_open_ = false;
    }
}

void Reporter::show_progress(const StepReport& report, std::int64_t last_step,
                             const SpeedOfLight& light) {
    const double step_s = seconds_between(ends_.front(), ends_.back()) /
                          static_cast<double>(std::max<std::size_t>(ends_.size() - 1, 1));
    const std::string place = text("step ", report.step, "/", last_step);
    const std::string rest =
        formatted("  loss %.4f  %.0f tokens/s%s  %s left", report.loss,
                  static_cast<double>(run_.train.global_batch) * run_.model.context / step_s,
                  describe_share(light.least(), step_s).c_str(),
                  describe_duration(static_cast<double>(last_step - report.step) * step_s).c_str());
    if (terminal_.columns == 0) {
        say(place + rest);
        return;
    }
    // One column less: some terminals begin a new line behind the last one.
    const std::string shown_place = cut(place, terminal_.columns - 1);
    const std::string shown_rest =
        cut(rest, terminal_.columns - 1 - static_cast<int>(shown_place.size()));
    std::printf("%s%s%s%s%s", kErasesLine, terminal_.has_colours ? kBold : "", shown_place.c_str(),
                terminal_.has_colours ? kPlain : "", shown_rest.c_str());
    is_line_open_ = true;
    if (report.step == last_step) {
        end_progress();
    }
    std::fflush(stdout);
}

}  // namespace nearstep::report
