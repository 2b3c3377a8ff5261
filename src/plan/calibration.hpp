// A site's devices and network as `nearstep bench csd` and `nearstep bench network` measured them,
// in place of what its file says.
#pragma once

#include "config/run.hpp"

#include <string>
#include <vector>

namespace nearstep::plan {

// Of one device.
struct DeviceRate {
    std::string row = {};         // its name in the result file
    std::string state = {};       // format, as csd.state names it
    double parameters_per_s = 0;  // reads, update and writes at once; the median
};

// Of a group of nodes that exchange with each other; of 1 node: of its ranks, from each.
struct NetworkRate {
    std::string row = {};
    int nodes = 2;
    double bytes_per_s = 0;  // from a node to the others
    double latency_us = 0;   // of a message
};

// What a result file has; nothing of it: the site's rates hold.
struct Calibration {
    std::vector<DeviceRate> devices = {};
    std::vector<NetworkRate> networks = {};  // by nodes, ascending

    // That of a step with the settings' state, with flushes if their durability is "step"; null:
    // not measured.
    const DeviceRate* device(const config::CsdSettings& csd) const;
    // That of the largest group with no more than `nodes` nodes, else of the smallest; null: none
    // was measured between nodes, or a node is alone.
    const NetworkRate* between(int nodes) const;
    // Null: not measured.
    const NetworkRate* inside() const;
};

// `lines`: of the files that `--json` of the two wrote, one or both, in any order; of two rows with
// the same name the later counts. `path`: for messages. Throws ConfigError if a line is of neither,
// or if there is nothing to take.
Calibration read_calibration(const std::string& lines, const std::string& path);

// All text of the file. Throws ConfigError if it cannot be read.
std::string read_calibration_lines(const std::string& path);

// Throws ConfigError if there are rates of devices and none of a step as the settings have it.
void expect_device(const Calibration& calibration, const std::string& path,
                   const config::CsdSettings& csd);

// The run with what was measured in place of the rates of [link] and [plan], to plan with; where
// transfers are held to these (link.shape), the slower of both counts. A device that updates so
// many parameters: its links read and write the state at that rate, and its engine and memory,
// which were measured with them, are no limit of their own. The rate inside a node holds for GPUs
// that exchange by way of the host (plan.gpu_to_gpu_gb_s = 0).
config::Run calibrated(config::Run run, const Calibration& calibration, int nodes);

// What calibrated() takes, a line each: "devices as measured: row durable.fp32, 15 Mparam/s each".
std::vector<std::string> describe(const Calibration& calibration, const config::Run& run,
                                  int nodes);

}  // namespace nearstep::plan
