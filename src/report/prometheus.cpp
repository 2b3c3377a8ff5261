// Writes a run's numbers in Prometheus's text format. Used by reporter.cpp.
#include "report/prometheus.hpp"

#include "base/error.hpp"
#include "base/formatted.hpp"
#include "base/output_file.hpp"
#include "base/version.hpp"

#include <charconv>
#include <cmath>
#include <ctime>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

namespace nearstep::report {

namespace {

constexpr const char* kWritten = "nearstep_drive_written_bytes_total";

// A label's value in quotation marks.
std::string quoted(const std::string& value) {
    std::string out = "\"";
    for (const char letter : value) {
        out += letter == '\n' ? "\\n" : letter == '"' || letter == '\\' ? "\\" : "";
        out += letter == '\n' ? std::string() : std::string(1, letter);
    }
    return out + "\"";
}

std::string number(double value) {
    return std::isnan(value)   ? "NaN"
           : std::isinf(value) ? (value > 0 ? "+Inf" : "-Inf")
                               : formatted("%.17g", value);
}

class Lines {
public:
    Lines& metric(const char* name, const char* type, const char* help) {
        name_ = name;
        out_ << "# HELP " << name << " " << help << "\n# TYPE " << name << " " << type << "\n";
        return *this;
    }
    Lines& value(double value, const std::string& labels = "") {
        out_ << name_ << labels << " " << number(value) << "\n";
        return *this;
    }
    std::string text() const { return out_.str(); }

private:
    std::ostringstream out_;
    const char* name_ = "";
};

std::string label(const char* key, const std::string& value) {
    return nearstep::text("{", key, "=", quoted(value), "}");
}

void add_times(const StepReport& report, Lines& lines) {
    lines.metric("nearstep_phase_seconds", "gauge", "Seconds of the last step's phases.");
    for (const auto& [name, seconds] :
         {std::pair{"forward", report.seconds.forward},
          std::pair{"backward", report.seconds.backward},
          std::pair{"update", report.seconds.update}, std::pair{"hidden", report.seconds.hidden}}) {
        lines.value(seconds, label("phase", name));
    }
    lines.metric("nearstep_network_seconds", "gauge",
                 "Seconds that parameters came after the slowest devices' update.");
    lines.value(report.network_s);
    const std::vector slowest = {
        std::pair{"computed", report.computed}, std::pair{"devices", report.devices},
        std::pair{"drives", report.drives},     std::pair{"nccl", report.nccl},
        std::pair{"sender", report.sender},     std::pair{"receiver", report.receiver}};
    lines.metric("nearstep_slowest_rank", "gauge", "The slowest rank of the last step.");
    for (const auto& [what, one] : slowest) {
        lines.value(one.rank, label("of", what));
    }
    lines.metric("nearstep_slowest_times", "gauge",
                 "Its time as a multiple of the median rank's, or of the first steps' for drives.");
    for (const auto& [what, one] : slowest) {
        lines.value(one.times, label("of", what));
    }
}

}  // namespace

std::string DriveLabel::text() const {
    return nearstep::text("{rank=\"", rank, "\",device=\"", device, "\",host=", quoted(host), "}");
}

RunDrives::RunDrives(const std::vector<int>& counts, const std::vector<int>& drives,
                     const std::vector<std::string>& hosts) {
    std::size_t place = 0;
    for (std::size_t rank = 0; rank < counts.size(); ++rank) {
        for (int device = 0; device < drives[rank]; ++device) {
            labels.push_back({static_cast<int>(rank), device, hosts[rank]});
            places.push_back(place + static_cast<std::size_t>(device));
        }
        place += static_cast<std::size_t>(counts[rank]);
    }
}

bool is_prometheus(const std::string& path) { return path.ends_with(".prom"); }

std::map<std::string, double> written_in(const std::string& text) {
    std::map<std::string, double> bytes;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        const std::size_t labels = std::string_view(kWritten).size();
        const std::size_t end = line.rfind("} ");
        if (!line.starts_with(std::string(kWritten) + "{") || end == std::string::npos) {
            continue;
        }
        double value = 0;
        const char* last = line.data() + line.size();
        const auto [stop, code] = std::from_chars(line.data() + end + 2, last, value);
        if (code == std::errc() && stop == last && std::isfinite(value) && value >= 0) {
            bytes[line.substr(labels, end + 1 - labels)] = value;
        }
    }
    return bytes;
}

PrometheusFile::PrometheusFile(const config::RunSettings& run, std::size_t parameters,
                               std::string path)
    : run_(run), parameters_(parameters), path_(std::move(path)) {
    check_writable(path_);
}

void PrometheusFile::begin(std::int64_t last_step, bool continues, RunDrives drives) {
    last_step_ = last_step;
    drives_ = std::move(drives);
    if (continues) {
        std::ifstream file(path_);
        earlier_ = written_in({std::istreambuf_iterator<char>(file), {}});
    }
    by_drive_ = earlier_;
}

void PrometheusFile::written(const std::vector<std::uint64_t>& of_devices) {
    for (std::size_t i = 0; i < drives_.labels.size(); ++i) {
        const std::string labels = drives_.labels[i].text();
        const auto before = earlier_.find(labels);
        by_drive_[labels] = (before == earlier_.end() ? 0 : before->second) +
                            static_cast<double>(of_devices.at(drives_.places[i]));
    }
}

std::string PrometheusFile::step(const StepReport& report, double wall_s) {
    report_ = report;
    wall_s_ = wall_s;
    skipped_ += report.is_skipped ? 1 : 0;
    const bool is_due = !is_written_ || report.step == last_step_ ||
                        Clock::now() - last_write_ >= std::chrono::seconds(1);
    return is_due ? write() : "";
}

std::string PrometheusFile::end() {
    is_running_ = false;
    return write();
}

std::string PrometheusFile::text() const {
    Lines lines;
    lines.metric("nearstep_run_info", "gauge", "What is trained, and by which commit.")
        .value(1, nearstep::text("{config=", quoted(run_.name), ",site=", quoted(run_.site),
                                 ",mode=", quoted(std::string(config::name_of(run_.mode))),
                                 ",commit=", quoted(commit()), "}"));
    const auto gauge = [&](const char* name, double value, const char* help) {
        lines.metric(name, "gauge", help).value(value);
    };
    gauge("nearstep_running", is_running_ ? 1 : 0, "1 until the run finished or stopped.");
    gauge("nearstep_last_write_seconds", static_cast<double>(std::time(nullptr)),
          "When this file was written, since 1970.");
    gauge("nearstep_parameters", static_cast<double>(parameters_), "Parameters of the model.");
    gauge("nearstep_steps", static_cast<double>(report_.step), "Steps done.");
    gauge("nearstep_steps_wanted", static_cast<double>(last_step_), "The run's last step.");
    lines.metric("nearstep_skipped_steps_total", "counter", "Skipped steps of this process.")
        .value(static_cast<double>(skipped_));
    gauge("nearstep_loss", report_.loss, "Loss of the last step, in nats per token.");
    if (heldout_ >= 0) {
        gauge("nearstep_heldout_loss", heldout_, "The last held-out loss, in nats per token.");
    }
    gauge("nearstep_gradient_norm", report_.gradient_norm, "Norm of the last step's gradient.");
    gauge("nearstep_learning_rate", report_.learning_rate, "Learning rate of the last step.");
    gauge("nearstep_step_seconds", wall_s_, "Wall time of the last step.");
    gauge("nearstep_tokens_per_second",
          wall_s_ > 0 ? static_cast<double>(run_.train.global_batch) * run_.model.context / wall_s_
                      : 0,
          "Tokens per second of the last step.");
    add_times(report_, lines);
    lines.metric(kWritten, "counter", "Bytes written to each drive by all processes of the job.");
    for (const auto& [labels, bytes] : by_drive_) {
        lines.value(bytes, labels);
    }
    if (run_.csd.rated_tbw > 0) {
        gauge("nearstep_drive_rated_bytes", run_.csd.rated_tbw * 1e12,
              "Bytes that a drive is rated for.");
    }
    return lines.text();
}

std::string PrometheusFile::write() {
    is_written_ = true;
    last_write_ = Clock::now();
    try {
        write_whole_file(path_, text());
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

}  // namespace nearstep::report
