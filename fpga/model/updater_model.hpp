// Cycle model of the updater: its parameters per second and its bottleneck. All numbers are
// modelled; no card ran them.
#pragma once

#include "fpga/kernel/arithmetic.hpp"
#include "fpga/kernel/limits.hpp"
#include "fpga/kernel/updater.hpp"
#include "fpga/model/network.hpp"

#include <cstdint>
#include <vector>

namespace nearstep::fpga {

// Rates of a SmartSSD from its data sheet and the paper's measurements. The usable share of the
// DRAM is assumed.
struct CardRates {
    double clock_hz = 1e6 * kClockMhz;
    double dram_bytes_per_s = 19.2e9;  // one bank of DDR4-2400
    double dram_share = 0.75;          // usable by many masters at once
    double ssd_read_bytes_per_s = 3.0e9;
    double ssd_write_bytes_per_s = 1.8e9;
};

struct UpdaterSettings {
    StateFormat format = StateFormat::fp32;
    GradientCodec codec = GradientCodec::dense_bf16;
    Optimizer optimizer = Optimizer::adamw;
    std::uint32_t sources = 1;
    double keep = 0.01;  // share kept by topk
    ParameterDelivery delivery = ParameterDelivery::parameters;
    double changed = 0.12;   // share of parameters that a step changes, for deltas
    double escaped = 0.001;  // share that it changes by more than one unit
    std::uint32_t lanes = kUpdateLanes;
    std::uint32_t sum_depth = kSumDepth;  // of the FIFO where sums wait for the lanes
    std::uint32_t fresh_depth =
        kFreshDepth;  // of the FIFO where parameters wait for their delta's form
};

// Which memory traffic is modelled.
enum class StepTraffic {
    none,       // unlimited memory: only the lanes count
    kernel,     // the updater has the DRAM to itself
    everything  // plus state from and to flash, digests, payloads in, parameters out
};

struct UpdaterRun {
    double cycles_per_tile = 0;  // with a full pipeline
    std::vector<Process> processes;
};

// Throws Error on a deadlock.
UpdaterRun run_updater(const UpdaterSettings& settings, const CardRates& card, StepTraffic traffic);

// Words per tile on each channel, by the argument names of arguments.hpp.
std::vector<Channel> channels_of(const UpdaterSettings& settings);

enum class LimitedBy { ssd, dram, lanes, digest };
const char* name_of(LimitedBy bound);

// Parameters per second of a card; read, update and write overlap.
struct CardEstimate {
    double lanes = 0;   // the updater with unlimited memory
    double kernel = 0;  // with the DRAM to itself
    double dram = 0;    // with all other DRAM traffic
    double digest = 0;  // the digest kernel, over the state read and the state written
    double ssd = 0;
    double card = 0;  // the minimum of these
    LimitedBy bound = LimitedBy::lanes;
    double lanes_starved = 0;  // share of the lanes' cycles, with the DRAM to itself
    double lanes_blocked = 0;
};

CardEstimate estimate(const UpdaterSettings& settings, const CardRates& card);

}  // namespace nearstep::fpga
