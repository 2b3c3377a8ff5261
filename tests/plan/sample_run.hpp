// Settings of a run on a site with a network of 12.5 GB/s and 5 us, and SmartSSDs.
#pragma once

#include "config/run_settings.hpp"

namespace nearstep::plan {

inline config::RunSettings run_on_site() {
    config::RunSettings run;
    run.csd = {.state = arith::StateFormat::fp32,
               .durability = config::Durability::step,
               .update_mparam_s = 1};
    run.link.scale = 0;
    run.link.device_read_gb_s = 3.0;
    run.link.device_write_gb_s = 1.8;
    run.link.host_gb_s = 12;
    run.link.network_gb_s = 12.5;
    run.plan.gpu_tflops = 100;
    run.plan.gpu_memory_gb = 80;
    run.plan.gpu_link_gb_s = 25;
    run.plan.host_memory_gb = 100;
    run.plan.device_memory_gb = 3.6;
    run.plan.device_capacity_gb = 3840;
    run.plan.network_latency_us = 5;
    return run;
}

}  // namespace nearstep::plan
