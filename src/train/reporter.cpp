#include "train/reporter.hpp"

#include "base/error.hpp"
#include "train/summary.hpp"

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdio>
#include <utility>

namespace nearstep::train {

namespace {

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
        if (!json.is_object() || !json.contains("step") || json["step"] > done) {
            continue;
        }
        if (!(json.contains("heldout_loss") && json["step"] >= last_step)) {
            kept += line + "\n";
        }
    }
    return kept;
}

}  // namespace

Reporter::Reporter(bool is_speaking, const config::Run& run, std::size_t parameters,
                   std::string metrics)
    : is_speaking_(is_speaking),
      run_(run),
      parameters_(parameters),
      metrics_path_(std::move(metrics)) {
    if (is_speaking_ && !metrics_path_.empty()) {
        metrics_.open(metrics_path_, std::ios::app);
        if (!metrics_) {
            throw ConfigError(
                text("The metrics file ", metrics_path_,
                     " cannot be written: name a file in a folder that exists and is writable."));
        }
    }
}

void Reporter::begin(std::int64_t done, std::int64_t last_step) {
    if (metrics_.is_open()) {
        metrics_.close();
        write_whole_file(metrics_path_, done > 0 ? kept_lines(metrics_path_, done, last_step) : "");
        metrics_.open(metrics_path_, std::ios::app);
    }
    start_ = Clock::now();
}

void Reporter::step(const StepReport& report, std::int64_t last_step) {
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
    const auto now = Clock::now();
    if (steps_ == 1 || report.step == last_step || seconds_between(last_line_, now) >= 2) {
        last_line_ = now;
        print_line(report, last_step);
    }
}

void Reporter::heldout(std::int64_t step, const HeldOutLoss& loss) {
    if (is_speaking_) {
        std::printf(
            "step %lld  held-out loss %.4f nats per token, %.4f per byte (%.4f bits per byte)\n",
            static_cast<long long>(step), loss.nats_per_token, loss.nats_per_byte,
            loss.bits_per_byte());
        std::fflush(stdout);
    }
    if (metrics_.is_open()) {
        metrics_ << nlohmann::json{{"step", step},
                                   {"heldout_loss", loss.nats_per_token},
                                   {"heldout_nats_per_byte", loss.nats_per_byte}}
                        .dump()
                 << std::endl;
    }
}

void Reporter::say(const std::string& line) const {
    if (is_speaking_) {
        std::printf("%s\n", line.c_str());
        std::fflush(stdout);
    }
}

void Reporter::print_line(const StepReport& report, std::int64_t last_step) const {
    const double rate = static_cast<double>(steps_) / seconds_between(start_, Clock::now());
    const auto left =
        static_cast<int>(std::lround(static_cast<double>(last_step - report.step) / rate));
    std::printf(
        "step %lld/%lld  loss %.4f  %.0f tokens/s  %d:%02d left  host link: %s B per parameter\n",
        static_cast<long long>(report.step), static_cast<long long>(last_step), report.loss,
        rate * run_.train.global_batch * run_.model.context, left / 60, left % 60,
        describe_host_link(report.traffic, parameters_, 1).c_str());
    std::fflush(stdout);
}

}  // namespace nearstep::train
