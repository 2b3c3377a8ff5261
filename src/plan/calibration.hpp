// Measured rates of a site's devices and network, from `nearstep bench csd` and `nearstep bench
// network`. They replace the rates of the site file.
#pragma once

#include "config/run_settings.hpp"

#include <string>
#include <vector>

namespace nearstep::plan {

// Measured rate of one device.
struct DeviceRate {
    std::string row = {};         // its name in the result file
    std::string state = {};       // format, as csd.state names it
    double parameters_per_s = 0;  // reads, update and writes at once; the median
};

// Measured rate of nodes that exchange with each other; with nodes = 1, of each rank in a node.
struct NetworkRate {
    std::string row = {};
    int nodes = 2;
    double bytes_per_s = 0;  // from a node to the others
    double latency_us = 0;   // per message
};

// The values of a result file. The site's rates hold for values that are missing.
struct Calibration {
    std::vector<DeviceRate> devices = {};
    std::vector<NetworkRate> networks = {};  // by nodes, ascending

    // The rate of a step with the settings' state format, with flushes if csd.durability is "step";
    // null if not measured.
    const DeviceRate* device(const config::CsdSettings& csd) const;
    // The rate of the largest group with at most `nodes` nodes, else of the smallest group. Null if
    // nothing was measured between nodes, or if `nodes` is 1.
    const NetworkRate* between(int nodes) const;
    // The rate inside a node; null if not measured.
    const NetworkRate* inside() const;
};

// Parses the lines that `--json` of the two benches wrote, one bench or both, in any order. Of two
// rows with the same name the later one counts. `path` is for messages. Throws ConfigError if a
// line is from neither bench, or if no rate is found.
Calibration read_calibration(const std::string& lines, const std::string& path);

// Returns all text of the file. Throws ConfigError if it cannot be read.
std::string read_calibration_lines(const std::string& path);

// Throws ConfigError if devices were measured, but no step with the settings' state format.
void expect_device(const Calibration& calibration, const std::string& path,
                   const config::CsdSettings& csd);

// Replaces the rates of [link] and [plan] by the measured ones. If link.scale limits transfers, the
// slower of both rates counts. The measured update rate includes a device's engine and memory: its
// links get that rate, and engine and memory are no limit of their own. The rate inside a node is
// for GPUs that exchange through the host (plan.gpu_to_gpu_gb_s = 0).
config::RunSettings calibrated(config::RunSettings run, const Calibration& calibration, int nodes);

// Describes the rates that calibrated() uses, one line each: "devices as measured: row
// durable.fp32, 15 Mparam/s each".
std::vector<std::string> describe(const Calibration& calibration, const config::RunSettings& run,
                                  int nodes);

}  // namespace nearstep::plan
