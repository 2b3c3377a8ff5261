#include "plan/calibration.hpp"

#include "base/error.hpp"

#include <nlohmann/json.hpp>

#include <map>
#include <sstream>

namespace nearstep::plan {

namespace {

// Rates of the rows with the format of the state, by name.
std::map<std::string, double> rates_in(const std::string& lines, const std::string& path,
                                       const std::string& state) {
    std::map<std::string, double> rates;
    std::istringstream in(lines);
    for (std::string line; std::getline(in, line);) {
        const auto json = nlohmann::json::parse(line, nullptr, false);
        if (!json.is_object() || json.value("bench", "") != "csd" || !json.contains("mparam_s") ||
            !json["mparam_s"].is_object() ||
            !json["mparam_s"].value("median", nlohmann::json()).is_number()) {
            throw ConfigError(
                text("The calibration ", path,
                     " has a line that is not of nearstep bench csd: name a file that "
                     "its --json wrote."));
        }
        if (json.value("state", "") == state) {
            rates[json.value("row", "")] = json["mparam_s"]["median"].get<double>() * 1e6;
        }
    }
    return rates;
}

}  // namespace

Calibration read_calibration(const std::string& lines, const std::string& path,
                             const config::CsdSettings& csd) {
    const std::map<std::string, double> rates = rates_in(lines, path, csd.state);
    // Without --state the bench compares parts of a device, and its plain step is called so.
    const bool is_durable = csd.durability == "step";
    for (const std::string& name : {text(is_durable ? "durable." : "step.", csd.state),
                                    std::string(is_durable ? "durable" : "checksums")}) {
        const auto found = rates.find(name);
        if (found != rates.end() && found->second > 0) {
            return {.row = name, .parameters_per_s = found->second};
        }
    }
    throw ConfigError(text("The calibration ", path, " has no step with csd.state = \"", csd.state,
                           "\": measure one with nearstep bench csd --state ", csd.state,
                           " --json FILE."));
}

void calibrate(const Calibration& calibration, double state_bytes, Site& site) {
    site.device_read = state_bytes * calibration.parameters_per_s;
    site.device_write = site.device_read;
    site.device_updates = 0;
    site.device_memory_rate = 0;
}

}  // namespace nearstep::plan
