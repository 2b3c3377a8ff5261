// What a plan is for: the work of a step, and what the nodes of a site can do.
#pragma once

#include "config/run.hpp"

#include <cstddef>

namespace nearstep::plan {

constexpr double kGiga = 1e9;  // of settings in GB and GB/s

// From the model's geometry.
struct ModelSize {
    std::size_t parameters = 0;
    std::size_t largest_block = 0;  // parameters
    int blocks = 1;
};

// Of one step. Bytes and operations are real numbers: they are only ever divided by rates.
struct Workload {
    ModelSize model;
    double element_bytes = 2;            // of a parameter in memory and of a dense gradient
    double state_bytes = 12;             // per parameter, read and written by a step
    double operations_per_sequence = 0;  // of a forward; backward with recomputing takes 3 times it
    double checkpoint_bytes = 0;         // of a sequence: the inputs of all blocks
    double working_bytes = 0;            // of a sequence: most that a block keeps for its backward
    double tokens_per_sequence = 1;
    double sequences = 1;        // of a step, over all ranks
    double micro_sequences = 1;  // that a rank computes at once
    double keep = 0.01;          // of topk
    bool is_serial = false;      // mode su: a device reads, updates and writes one after another
    bool has_error_feedback = false;
};

// Of a node and of each of its GPUs and devices: bytes, and bytes per second. A rate of 0 is no
// limit.
struct Site {
    int gpus = 1;
    int csds = 1;
    double gpu_operations = 0;  // per second, as a model reaches them
    double gpu_memory = 0;
    double gpu_memory_rate = 0;
    double gpu_link = 0;    // GPU and host, each direction
    double gpu_to_gpu = 0;  // from each GPU of a node to the others
    double host_memory = 0;
    double host_memory_rate = 0;
    double host_link = 0;        // host and devices, each direction
    double host_link_total = 0;  // both directions together
    double device_read = 0;
    double device_write = 0;
    double device_link = 0;  // a device's memory and the host link, each direction
    double device_memory = 0;
    double device_memory_rate = 0;
    double device_updates = 0;  // parameters per second of the engine
    double device_capacity = 0;
    double network = 0;  // from a node and to it
    double latency_s = 0;
    double delta_bytes = 0.35;  // of the delta gather, per parameter
    double node_price = 0;
    double gpu_price = 0;
    double csd_price = 0;
};

struct Problem {
    Workload work;
    Site site;
    int nodes = 1;

    int ranks() const { return nodes * site.gpus; }
    int devices() const { return nodes * site.csds; }
};

// Bytes that the state of a parameter takes in a format of csd.state; ConfigError if there is none.
double state_bytes_of(const std::string& state);

// `sequences`: of a step.
Workload workload_of(const config::Run& run, const ModelSize& model, double sequences);

// Throws ConfigError naming the first key that a plan for `nodes` nodes needs and the site lacks.
Site site_of(const config::Run& run, int nodes);

}  // namespace nearstep::plan
