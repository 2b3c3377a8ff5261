// Reads measured rates and puts them into a site. Used by the planner and by reports.
#include "plan/calibration.hpp"

#include "base/error.hpp"
#include "base/input_file.hpp"
#include "base/json_text.hpp"
#include "plan/kept_state.hpp"
#include "plan/problem.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <sstream>

namespace nearstep::plan {

namespace {

using nlohmann::json;

constexpr int kMostNodes = 1 << 20;

// The number under the key, if present and at least `least`.
std::optional<double> number_at(const json& row, const char* key, double least) {
    const auto found = row.find(key);
    return found != row.end() && found->is_number() && found->get<double>() >= least
               ? std::optional(found->get<double>())
               : std::nullopt;
}

// A number above zero.
std::optional<double> rate_at(const json& row, const char* key) {
    const std::optional<double> rate = number_at(row, key, 0);
    return rate && *rate > 0 ? rate : std::nullopt;
}

std::string word_at(const json& row, const char* key) {
    const auto found = row.find(key);
    return found != row.end() && found->is_string() ? found->get<std::string>() : "";
}

// Replaces the item that `is_same`, or appends.
template <typename T, typename IsSame>
void put(std::vector<T>& all, T one, IsSame is_same) {
    const auto found = std::ranges::find_if(all, is_same);
    if (found == all.end()) {
        all.push_back(std::move(one));
    } else {
        *found = std::move(one);
    }
}

// False if the row is not from bench csd.
bool add_device(const json& row, Calibration& calibration) {
    const auto spread = row.find("mparam_s");
    const auto rate =
        spread != row.end() && spread->is_object() ? rate_at(*spread, "median") : std::nullopt;
    if (!rate) {
        return false;
    }
    DeviceRate device = {.row = word_at(row, "row"),
                         .state = word_at(row, "state"),
                         .parameters_per_s = *rate * 1e6};
    put(calibration.devices, device, [&](const DeviceRate& other) {
        return other.row == device.row && other.state == device.state;
    });
    return true;
}

// Rows that were fitted by size are ignored. False if the row is not from bench network.
bool add_network(const json& row, Calibration& calibration) {
    const auto nodes = number_at(row, "nodes", 1);
    const auto rate = rate_at(row, "gb_s");
    if (!nodes || *nodes > kMostNodes || !rate) {
        return false;
    }
    if (row.contains("message_bytes")) {
        return true;
    }
    const auto latency = number_at(row, "latency_us", 0);
    if (!latency) {
        return false;
    }
    NetworkRate network = {.row = word_at(row, "row"),
                           .nodes = static_cast<int>(*nodes),
                           .bytes_per_s = *rate * kGiga,
                           .latency_us = *latency};
    put(calibration.networks, network,
        [&](const NetworkRate& other) { return other.nodes == network.nodes; });
    return true;
}

// The lower rate; a rate of 0 means no limit.
double slower(double one, double other) {
    return one > 0 && other > 0 ? std::min(one, other) : std::max(one, other);
}

}  // namespace

const DeviceRate* Calibration::device(const config::CsdSettings& csd) const {
    // The second name is that of the bench's plain step without --state.
    const bool is_durable = csd.durability == config::Durability::step;
    const std::string state = name_of(csd.state);
    for (const std::string& name : {text(is_durable ? "durable." : "step.", state),
                                    std::string(is_durable ? "durable" : "checksums")}) {
        for (const DeviceRate& rate : devices) {
            if (rate.row == name && rate.state == state) {
                return &rate;
            }
        }
    }
    return nullptr;
}

const NetworkRate* Calibration::between(int nodes) const {
    if (nodes == 1) {
        return nullptr;
    }
    const NetworkRate* found = nullptr;
    for (const NetworkRate& rate : networks) {
        if (rate.nodes > 1 && (found == nullptr || rate.nodes <= nodes)) {
            found = &rate;
        }
    }
    return found;
}

const NetworkRate* Calibration::inside() const {
    return !networks.empty() && networks.front().nodes == 1 ? &networks.front() : nullptr;
}

Calibration read_calibration(const std::string& lines, const std::string& path) {
    Calibration calibration;
    std::istringstream in(lines);
    int number = 0;
    for (std::string line; std::getline(in, line);) {
        ++number;
        const json row = is_nested_too_deeply(line) ? json() : json::parse(line, nullptr, false);
        const std::string bench = row.is_object() ? word_at(row, "bench") : "";
        if (!(bench == "csd" && add_device(row, calibration)) &&
            !(bench == "network" && add_network(row, calibration))) {
            throw ConfigError(text("The calibration ", path, " has a line, number ", number,
                                   ", that is not of nearstep bench csd or nearstep bench network: "
                                   "name a file that their --json wrote."));
        }
    }
    if (calibration.devices.empty() && calibration.networks.empty()) {
        throw ConfigError(text("The calibration ", path,
                               " has nothing to take: name a file that --json of nearstep bench "
                               "csd or nearstep bench network wrote."));
    }
    std::ranges::sort(calibration.networks, {}, &NetworkRate::nodes);
    return calibration;
}

std::string read_calibration_lines(const std::string& path) {
    return read_short_file(
        path, "The calibration",
        "name a file that --json of nearstep bench csd or nearstep bench network wrote.");
}

void expect_device(const Calibration& calibration, const std::string& path,
                   const config::CsdSettings& csd) {
    if (!calibration.devices.empty() && calibration.device(csd) == nullptr) {
        throw ConfigError(text("The calibration ", path, " has no step with csd.state = \"",
                               name_of(csd.state),
                               "\": measure one with nearstep bench csd --state ",
                               name_of(csd.state), " --json FILE."));
    }
}

config::RunSettings calibrated(config::RunSettings run, const Calibration& calibration, int nodes) {
    config::LinkSettings& link = run.link;
    const bool is_shaped = link.are_shaped();
    // The rate in the unit of the keys of [link].
    const auto rate = [&](double of_site, double bytes_per_s) {
        const double measured = bytes_per_s / kGiga / link.factor();
        return is_shaped ? slower(of_site, measured) : measured;
    };
    if (const DeviceRate* device = calibration.device(run.csd)) {
        const bool is_on_drive = !is_in_memory(run);
        const double bytes_per_s = state_bytes_of(run.csd.state) * device->parameters_per_s;
        if (is_on_drive) {
            link.device_read_gb_s = rate(link.device_read_gb_s, bytes_per_s);
            link.device_write_gb_s = rate(link.device_write_gb_s, bytes_per_s);
        }
        run.csd.update_mparam_s = is_shaped     ? run.csd.update_mparam_s
                                  : is_on_drive ? 0
                                                : device->parameters_per_s / 1e6;
        run.plan.device_memory_gb_s = 0;
    }
    if (const NetworkRate* between = calibration.between(nodes)) {
        link.network_gb_s = rate(link.network_gb_s, between->bytes_per_s);
        run.plan.network_latency_us = between->latency_us;
    }
    const NetworkRate* inside = calibration.inside();
    if (inside != nullptr && run.plan.gpu_to_gpu_gb_s <= 0) {
        run.plan.gpu_to_gpu_gb_s = slower(run.plan.gpu_link_gb_s, inside->bytes_per_s / kGiga);
    }
    return run;
}

std::vector<std::string> describe(const Calibration& calibration, const config::RunSettings& run,
                                  int nodes) {
    std::vector<std::string> lines;
    if (const DeviceRate* device = calibration.device(run.csd)) {
        lines.push_back(text("devices as measured: row ", device->row, ", ",
                             device->parameters_per_s / 1e6, " Mparam/s each"));
    }
    if (const NetworkRate* between = calibration.between(nodes)) {
        lines.push_back(text("network as measured: row ", between->row, ", ",
                             between->bytes_per_s / kGiga, " GB/s from a node and ",
                             between->latency_us, " us a message"));
    }
    if (const NetworkRate* inside = calibration.inside()) {
        lines.push_back(
            text("inside a node as measured: row ", inside->row, ", ", inside->bytes_per_s / kGiga,
                 " GB/s from a rank",
                 run.plan.gpu_to_gpu_gb_s > 0 ? ", not taken: plan.gpu_to_gpu_gb_s is set" : ""));
    }
    return lines;
}

}  // namespace nearstep::plan
