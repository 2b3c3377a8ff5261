// The table of a site's keys. Used by keys.cpp.
#include "config/keys.hpp"

namespace nearstep::config {

namespace {

constexpr Limits a_rate() { return between(0, kMostRate); }

}  // namespace

// Real transfers are delayed to these rates, unless link.scale is 0.
std::vector<Key> link_keys(LinkSettings& link) {
    const auto rate = [](const char* name, double* target, const char* meaning) {
        return Key{name, target, meaning, "GB/s", a_rate()};
    };
    return {
        rate("link.device_read_gb_s", &link.device_read_gb_s,
             "highest read rate of a device's drive; 0: not shaped"),
        rate("link.device_write_gb_s", &link.device_write_gb_s,
             "highest write rate of a device's drive; 0: not shaped"),
        rate("link.host_gb_s", &link.host_gb_s,
             "highest rate of a node's host link in each direction; 0: not shaped"),
        rate("link.host_total_gb_s", &link.host_total_gb_s,
             "highest rate of a node's host link, both directions together; 0: not shaped"),
        rate("link.network_gb_s", &link.network_gb_s,
             "highest rate from a node to all others; 0: not shaped"),
        {"link.gpu_traffic", &link.gpu_traffic,
         "parameters and gradients that GPUs move over the shaped host link; apart: none, whole: "
         "all of them for each rank, split: all of them once per node"},
        {"link.scale", &link.scale,
         "factor for all rates of [link] and for csd.update_mparam_s, to which transfers and "
         "updates are delayed; 0: the rates are real ones, to plan and predict with",
         "", a_rate()},
    };
}

// Keys that only `nearstep plan` uses, beside the rates of [link].
std::vector<Key> plan_keys(PlanSettings& plan) {
    const auto key = [](const char* name, double* target, const char* unit, const char* meaning) {
        return Key{name, target, meaning, unit, a_rate()};
    };
    return {
        {"plan.gpu_efficiency", &plan.gpu_efficiency,
         "share of plan.gpu_tflops that a model reaches", "share", above_zero_to_one()},
        key("plan.gpu_tflops", &plan.gpu_tflops, "TFLOP/s", "peak rate of a GPU's matrix products"),
        key("plan.gpu_memory_gb", &plan.gpu_memory_gb, "GB", "memory of a GPU"),
        key("plan.gpu_memory_gb_s", &plan.gpu_memory_gb_s, "GB/s",
            "bandwidth of a GPU's memory; 0: no limit"),
        key("plan.gpu_link_gb_s", &plan.gpu_link_gb_s, "GB/s",
            "bandwidth between a GPU and its host in each direction"),
        key("plan.gpu_to_gpu_gb_s", &plan.gpu_to_gpu_gb_s, "GB/s",
            "bandwidth from one GPU to the other GPUs of its node; 0: through the host"),
        key("plan.host_memory_gb", &plan.host_memory_gb, "GB", "memory of a node's host"),
        key("plan.host_memory_gb_s", &plan.host_memory_gb_s, "GB/s",
            "bandwidth of a host's memory; 0: no limit"),
        key("plan.device_memory_gb", &plan.device_memory_gb, "GB",
            "memory of a device for staging"),
        key("plan.device_memory_gb_s", &plan.device_memory_gb_s, "GB/s",
            "bandwidth of a device's memory; 0: no limit"),
        key("plan.device_link_gb_s", &plan.device_link_gb_s, "GB/s",
            "bandwidth between a device's memory and the host link; 0: no limit"),
        key("plan.device_capacity_gb", &plan.device_capacity_gb, "GB",
            "capacity of a device's drive"),
        key("plan.network_latency_us", &plan.network_latency_us, "us",
            "latency of a message between nodes"),
        key("plan.bulk_loss", &plan.bulk_loss, "per node",
            "with n nodes, link.network_gb_s / (1 + (n - 1) plan.bulk_loss) is what all-reduce and "
            "broadcast of a whole vector reach"),
        key("plan.layer_loss", &plan.layer_loss, "per node",
            "the same for all-gather and reduce-scatter of one layer after another"),
        key("plan.delta_bytes", &plan.delta_bytes, "B/param",
            "bytes per parameter that the delta gather sends; 0.35 was measured at a learning rate "
            "of 2e-5"),
        key("plan.node_price", &plan.node_price, "$",
            "price of a node without GPUs and devices; 0: unknown"),
        key("plan.storage_node_price", &plan.storage_node_price, "$",
            "price of a storage node without devices; 0: as plan.node_price"),
        key("plan.gpu_price", &plan.gpu_price, "$", "price of a GPU; 0: unknown"),
        key("plan.csd_price", &plan.csd_price, "$", "price of a device; 0: unknown"),
        key("plan.ssd_price", &plan.ssd_price, "$",
            "price of a plain drive instead of a device, for mode base; 0: unknown"),
        {"plan.calibration", &plan.calibration,
         "result file (--json) of `nearstep bench csd`, `bench network` or both; empty: use the "
         "rates above",
         "", may_be_empty()},
    };
}

std::vector<Key> hosts_keys(HostsSettings& hosts) {
    return {
        {"hosts.names", &hosts.names,
         "hosts of the site, in the order in which ranks fill them; empty: this machine", "",
         may_be_empty()},
        {"hosts.storage", &hosts.storage,
         "storage hosts, behind the others: one rank each, which holds its devices and computes "
         "nothing",
         "", may_be_empty()},
        {"hosts.ranks", &hosts.ranks,
         "most ranks of each host, with one GPU each in a plan; 0: one, and any number on this "
         "machine",
         "ranks", between(0, kMostDevices)},
        {"hosts.devices", &hosts.devices,
         "computational storage devices of each host; 0: as many as csd.per_rank says", "devices",
         between(0, kMostDevices)},
        {"hosts.cores_per_rank", &hosts.cores_per_rank,
         "cores that each rank is bound to; 0: not bound, ranks share the host's cores", "cores",
         between(0, kMostDevices)},
        {"hosts.interface", &hosts.interface,
         "network interface between the hosts; empty: MPI chooses", "", may_be_empty()},
        {"hosts.remote", &hosts.remote,
         "program that runs a command on a host, with ssh's arguments"},
        {"hosts.head", &hosts.head,
         "host that starts the ranks or submits the job; empty: this one", "", may_be_empty()},
        {"hosts.mpirun_options", &hosts.mpirun_options, "more options for mpirun", "",
         may_be_empty()},
        {"hosts.sbatch_options", &hosts.sbatch_options,
         "more options for sbatch, such as the partition and GPUs", "", may_be_empty()},
        {"hosts.storage_sbatch_options", &hosts.storage_sbatch_options,
         "more options for sbatch for the storage hosts, which do not get the others", "",
         may_be_empty()},
    };
}

}  // namespace nearstep::config
