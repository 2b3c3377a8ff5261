// The problem behind the planner's hand-computed numbers: 7e9 parameters, 10 SmartSSDs per node, 25
// GB/s between nodes, no latency.
#pragma once

#include "plan/cost.hpp"
#include "plan/problem.hpp"

namespace nearstep::plan {

inline Problem seven_billion(int nodes) {
    Problem problem;
    problem.work.model = {.parameters = 7000000000, .largest_block = 210000000, .blocks = 34};
    problem.work.operations_per_sequence = 2 * 7e9 * 2048;
    problem.work.checkpoint_bytes = 2048 * 4096 * 2.0 * 33;
    problem.work.working_bytes = 1e9;
    problem.work.kept_bytes = 7e9;
    problem.work.tokens_per_sequence = 2048;
    problem.work.sequences = 8192;
    problem.work.micro_sequences = 2;
    Site& site = problem.site;
    site.gpus = 8;
    site.csds = 10;
    site.gpu_operations = 140e12;
    site.gpu_memory = 80e9;
    site.gpu_memory_rate = 2e12;
    site.gpu_link = 25e9;
    site.gpu_to_gpu = 300e9;
    site.host_memory = 1e12;
    site.host_memory_rate = 200e9;
    site.host_link = 12e9;
    site.device_read = 3.0e9;
    site.device_write = 1.8e9;
    site.device_link = 3.2e9;
    site.device_memory = 3.6e9;
    site.device_capacity = 3840e9;
    site.network = 25e9;
    problem.nodes = nodes;
    return problem;
}

// State over all devices, parameters in every GPU, gradients summed over the node.
inline Choice usual(const Problem& problem) {
    Choice choice;
    choice.gradients = {.gpus = problem.site.gpus, .nodes = 1};
    choice.optimizer = {.gpus = problem.site.gpus, .nodes = problem.nodes};
    return choice;
}

// The plans that `nearstep train` can train.
inline Space space_of_program(const Problem& problem, const std::vector<Codec>& codecs) {
    Space space = space_of(problem, codecs);
    space.clients = {Client::program};
    return space;
}

}  // namespace nearstep::plan
