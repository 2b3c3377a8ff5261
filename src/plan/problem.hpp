// The input of a plan: the work of a step, and the hardware of a site.
#pragma once

#include "config/run_settings.hpp"
#include "csd/keeping.hpp"

#include <algorithm>
#include <cstddef>

namespace nearstep::plan {

constexpr double kGiga = 1e9;  // for settings in GB and GB/s

// Sizes that follow from the model's geometry.
struct ModelSize {
    std::size_t parameters = 0;
    std::size_t largest_block = 0;  // parameters
    int blocks = 1;
};

// The work of one step. Bytes and operations are real numbers: they are only divided by rates.
struct Workload {
    ModelSize model;
    double element_bytes = 2;  // of a parameter in memory and of a dense gradient
    arith::StateFormat state = arith::StateFormat::fp32;
    double state_bytes = 12;             // per parameter, read and written by a step
    double master_bytes = 4;             // of the state's master of a parameter
    double operations_per_sequence = 0;  // of a forward; backward takes 3 times as many
    double checkpoint_bytes = 0;         // per sequence: the inputs of all blocks
    double working_bytes = 0;  // per sequence: the most that a block keeps for its backward
    double kept_bytes = 0;     // per sequence: what all blocks together keep for theirs
    double logits_bytes = 0;   // per sequence: the part of these that the last block needs
    double tokens_per_sequence = 1;
    double sequences = 1;        // of a step, over all ranks
    double micro_sequences = 1;  // sequences that a rank computes at once
    double keep = 0.01;          // for topk
    bool is_serial = false;      // mode su: a device reads, updates and writes without overlap
    bool has_error_feedback = false;
    double moved_bytes_per_sequence = 0;  // in GPU memory by a forward, beside matrix products
    double trained = 1;                   // share of the parameters that have gradients and state
    int slots = config::kLeastSlots;      // of a device
    double kept = 0;                      // share of the state on drives that slots keep
    csd::Keeping keeping = csd::Keeping::twice;  // of the state by csd.path
    bool is_in_memory = false;                   // this state lies in host memory
    double log_room = 0;                         // bytes of a rank's logs; 0: as many as is usual

    // The places of a subgroup, without the few spare ones that all share.
    int places() const { return keeping == csd::Keeping::twice ? 2 : 1; }
    // The bytes of host memory that this state takes.
    double bytes_in_memory() const {
        return is_in_memory ? state_bytes * static_cast<double>(model.parameters) : 0;
    }
};

// One node, its GPUs and its devices, which may be a storage node's, in bytes and bytes per second.
// A rate of 0 means no limit.
struct Site {
    int gpus = 1;
    int csds = 1;
    int csds_beside = 0;        // of a node that computes, if there are storage nodes
    double gpu_peak = 0;        // operations per second, of matrix products alone
    double gpu_operations = 0;  // as models reach them in practice
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
    double device_total = 0;  // reads and writes together
    double device_link = 0;   // between a device's memory and the host link, each direction
    double device_memory = 0;
    double device_memory_rate = 0;
    double device_updates = 0;  // parameters per second of the engine
    double device_capacity = 0;
    double device_rating = 0;  // that may be written to a drive; 0: unknown
    double network = 0;        // of one node, each direction
    double latency_s = 0;
    // Shares of `network` that a collective loses for each node beyond the first: one that passes
    // a vector once in large messages, and one that gathers or reduces it layer by layer.
    double bulk_loss = 0;
    double layer_loss = 0;
    double delta_bytes = 0.35;  // per parameter, in the delta gather
    double node_price = 0;
    double storage_node_price = 0;
    double gpu_price = 0;
    double csd_price = 0;
};

struct Problem {
    Workload work;
    Site site;
    int nodes = 1;
    int storage_nodes = 0;  // without GPUs; if there are some, the site's devices are theirs

    int ranks() const { return nodes * site.gpus; }
    int devices() const {
        return storage_nodes > 0 ? storage_nodes * site.csds + nodes * site.csds_beside
                                 : nodes * site.csds;
    }
    // Devices of the node that has the most.
    int most_csds() const {
        return storage_nodes > 0 ? std::max(site.csds, site.csds_beside) : site.csds;
    }
    // How many nodes like that one would have all devices.
    double homes() const {
        return devices() > 0 ? static_cast<double>(devices()) / most_csds() : nodes;
    }
    // Whether nodes that compute have drives.
    bool has_drives_beside_gpus() const { return storage_nodes == 0 || site.csds_beside > 0; }
    // Ranks that have drives, and so may keep state in host memory; and those of a node.
    int holders() const { return storage_nodes + (has_drives_beside_gpus() ? ranks() : 0); }
    int holders_of_node() const { return has_drives_beside_gpus() ? site.gpus : 1; }
    // A step's operations without recomputation, as a share of what the GPUs could do in `step_s`.
    double share_of_peak(double step_s) const {
        return 3 * work.operations_per_sequence * work.sequences /
               (site.gpu_peak * ranks() * step_s);
    }
};

// Bytes of state per parameter.
double state_bytes_of(arith::StateFormat state);

// Describes the work of a step with `sequences` sequences.
Workload workload_of(const config::RunSettings& run, const ModelSize& model, double sequences);

// Where a plan may keep the optimizer state: on devices alone, or also in the memory of GPUs.
enum class StatePlaces { devices, gpus_too };

// Throws ConfigError naming the first missing key that a plan for `nodes` nodes needs. Keys of
// hosts and devices may be missing if there is another place for the state.
Site site_of(const config::RunSettings& run, int nodes, StatePlaces tiers = StatePlaces::devices);

}  // namespace nearstep::plan
