#include "config/site_keys.hpp"

namespace nearstep::config {

// With link.shape, real transfers are delayed to these rates.
std::vector<Key> link_keys(LinkSettings& link) {
    const auto rate = [](const char* name, double* target, const char* meaning) {
        return Key{.name = name,
                   .target = target,
                   .unit = "GB/s",
                   .meaning = meaning,
                   .limits = not_negative(),
                   .is_for_sites = true};
    };
    return {
        {.name = "link.shape",
         .target = &link.shape,
         .meaning = "delay transfers to the rates of [link]; false: real links, rates for a plan",
         .is_for_sites = true},
        rate("link.device_read_gb_s", &link.device_read_gb_s,
             "highest rate at which a device's drive is read; 0: not shaped"),
        rate("link.device_write_gb_s", &link.device_write_gb_s,
             "highest rate at which a device's drive is written; 0: not shaped"),
        rate("link.host_gb_s", &link.host_gb_s,
             "highest rate of a node's host link, in each direction by itself; 0: not shaped"),
        rate("link.host_total_gb_s", &link.host_total_gb_s,
             "highest rate of a node's host link, both directions together; 0: not shaped"),
        rate("link.network_gb_s", &link.network_gb_s,
             "highest rate from a node to the others; 0: not shaped"),
        {.name = "link.gpu_traffic",
         .target = &link.gpu_traffic,
         .meaning = "what the ranks' GPUs move over the shaped host link: nothing, each all "
                    "parameters and gradients, or all of a node together as much as one",
         .words = {"apart", "whole", "split"},
         .is_for_sites = true},
        {.name = "link.scale",
         .target = &link.scale,
         .meaning = "all rates of [link] and csd.update_mparam_s are multiplied by it",
         .limits = above_zero(),
         .is_for_sites = true},
    };
}

// Keys that only `nearstep plan` uses, beside the rates of [link].
std::vector<Key> plan_node_keys(PlanSettings& plan) {
    return {
        {.name = "plan.gpus_per_node",
         .target = &plan.gpus_per_node,
         .unit = "GPUs",
         .meaning = "ranks of a node, one GPU each",
         .limits = between(1, kMostDevices),
         .is_for_sites = true},
        {.name = "plan.csds_per_node",
         .target = &plan.csds_per_node,
         .unit = "devices",
         .meaning = "computational storage devices of a node",
         .limits = between(1, kMostDevices),
         .is_for_sites = true},
        {.name = "plan.gpu_efficiency",
         .target = &plan.gpu_efficiency,
         .unit = "share",
         .meaning = "share of plan.gpu_tflops that a model reaches",
         .limits = above_zero_to_one(),
         .is_for_sites = true},
    };
}

std::vector<Key> plan_rate_keys(PlanSettings& plan) {
    const auto key = [](const char* name, double* target, const char* unit, const char* meaning) {
        return Key{.name = name,
                   .target = target,
                   .unit = unit,
                   .meaning = meaning,
                   .limits = not_negative(),
                   .is_for_sites = true};
    };
    return {
        key("plan.gpu_tflops", &plan.gpu_tflops, "TFLOP/s", "peak of a GPU's matrix products"),
        key("plan.gpu_memory_gb", &plan.gpu_memory_gb, "GB", "memory of a GPU"),
        key("plan.gpu_memory_gb_s", &plan.gpu_memory_gb_s, "GB/s",
            "of a GPU's memory; 0: no limit"),
        key("plan.gpu_link_gb_s", &plan.gpu_link_gb_s, "GB/s",
            "between a GPU and its host, in each direction"),
        key("plan.gpu_to_gpu_gb_s", &plan.gpu_to_gpu_gb_s, "GB/s",
            "between the GPUs of a node, from each; 0: by way of the host"),
        key("plan.host_memory_gb", &plan.host_memory_gb, "GB", "memory of a node's host"),
        key("plan.host_memory_gb_s", &plan.host_memory_gb_s, "GB/s",
            "of a host's memory; 0: no limit"),
        key("plan.device_memory_gb", &plan.device_memory_gb, "GB",
            "memory of a device that staging may use"),
        key("plan.device_memory_gb_s", &plan.device_memory_gb_s, "GB/s",
            "of a device's memory; 0: no limit"),
        key("plan.device_link_gb_s", &plan.device_link_gb_s, "GB/s",
            "between a device's memory and the host link; 0: no limit"),
        key("plan.device_capacity_gb", &plan.device_capacity_gb, "GB", "a device's drive"),
        key("plan.network_latency_us", &plan.network_latency_us, "us",
            "of a message between nodes"),
        key("plan.delta_bytes", &plan.delta_bytes, "B/param",
            "what the delta gather sends; 0.35 was measured at a rate of 2e-5"),
        key("plan.node_price", &plan.node_price, "$",
            "of a node without GPUs and devices; 0: not known"),
        key("plan.gpu_price", &plan.gpu_price, "$", "of a GPU; 0: not known"),
        key("plan.csd_price", &plan.csd_price, "$", "of a device; 0: not known"),
        key("plan.ssd_price", &plan.ssd_price, "$",
            "of a plain drive in its place, for mode base; 0: not known"),
        {.name = "plan.calibration",
         .target = &plan.calibration,
         .meaning = "result file of --json of `nearstep bench csd`, `bench network` or both; "
                    "empty: the rates "
                    "above hold",
         .may_be_empty = true,
         .is_for_sites = true},
    };
}

std::vector<Key> hosts_keys(HostsSettings& hosts) {
    return {
        {.name = "hosts.names",
         .target = &hosts.names,
         .meaning = "hosts of the site in the order that ranks fill them; none: this machine",
         .may_be_empty = true,
         .is_for_sites = true},
        {.name = "hosts.ranks",
         .target = &hosts.ranks,
         .unit = "ranks",
         .meaning = "most ranks of each host; 0: one, and on this machine any number",
         .limits = between(0, kMostDevices),
         .is_for_sites = true},
        {.name = "hosts.devices",
         .target = &hosts.devices,
         .unit = "devices",
         .meaning = "computational storage devices of each host; 0: as many as are asked for",
         .limits = between(0, kMostDevices),
         .is_for_sites = true},
        {.name = "hosts.cores_per_rank",
         .target = &hosts.cores_per_rank,
         .unit = "cores",
         .meaning = "cores that a rank is bound to; 0: unbound, the host's cores are shared out",
         .limits = between(0, kMostDevices),
         .is_for_sites = true},
        {.name = "hosts.interface",
         .target = &hosts.interface,
         .meaning = "network interface between the hosts; empty: MPI chooses",
         .may_be_empty = true,
         .is_for_sites = true},
        {.name = "hosts.remote",
         .target = &hosts.remote,
         .meaning = "program that runs a command line on a host, as ssh does",
         .is_for_sites = true},
        {.name = "hosts.head",
         .target = &hosts.head,
         .meaning = "host that starts the ranks or submits the job; empty: this one",
         .may_be_empty = true,
         .is_for_sites = true},
        {.name = "hosts.mpirun_options",
         .target = &hosts.mpirun_options,
         .meaning = "further options of mpirun",
         .may_be_empty = true,
         .is_for_sites = true},
        {.name = "hosts.sbatch_options",
         .target = &hosts.sbatch_options,
         .meaning = "further options of sbatch, such as the partition and GPUs",
         .may_be_empty = true,
         .is_for_sites = true},
    };
}

}  // namespace nearstep::config
