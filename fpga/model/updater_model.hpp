// The updater cycle by cycle: how many parameters in a second, and what holds it up. All numbers
// are modelled: no card ran them.
#pragma once

#include "fpga/kernel/arithmetic.hpp"
#include "fpga/kernel/limits.hpp"
#include "fpga/kernel/updater.hpp"
#include "fpga/model/network.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace nearstep::fpga {

// A SmartSSD as its data sheet and the paper's measurements have it; the DRAM's usable share is
// assumed.
struct CardRates {
    double clock_hz = 1e6 * kClockMhz;
    double dram_bytes_per_s = 19.2e9;  // one bank of DDR4-2400
    double dram_share = 0.75;          // that many masters at once can use
    double ssd_read_bytes_per_s = 3.0e9;
    double ssd_write_bytes_per_s = 1.8e9;
};

struct UpdaterSettings {
    StateFormat format = StateFormat::fp32;
    GradientCodec codec = GradientCodec::dense_bf16;
    Optimizer optimizer = Optimizer::adamw;
    std::uint32_t sources = 1;
    double keep = 0.01;  // of topk
    ParameterDelivery delivery = ParameterDelivery::parameters;
    double changed = 0.12;   // share of parameters that a step changes, for deltas
    double escaped = 0.001;  // and changes by more than one unit
    std::uint32_t lanes = kUpdateLanes;
    std::uint32_t sum_depth = kSumDepth;      // of the FIFO in which sums wait for the lanes
    std::uint32_t fresh_depth = kFreshDepth;  // of the FIFO in which parameters wait for their form
};

// Whose memory traffic there is besides the kernel's own.
enum class Traffic {
    none,       // and memory without a limit: the lanes alone
    kernel,     // the updater has the DRAM for itself
    everything  // and shares it: state from and to flash, digests, payloads in, parameters out
};

struct UpdaterRun {
    double cycles_per_tile = 0;  // when the pipeline is full
    std::vector<Process> processes;
};

// Throws Error if the processes come to a stop.
UpdaterRun run_updater(const UpdaterSettings& settings, const CardRates& card, Traffic traffic);

// Words that cross each channel for a tile, by the names of arguments.hpp.
std::vector<Channel> channels_of(const UpdaterSettings& settings);

enum class Bound { ssd, dram, lanes, digest };
const char* name_of(Bound bound);

// Parameters per second of a card whose read, update and write overlap.
struct CardEstimate {
    double lanes = 0;   // the updater with memory without a limit
    double kernel = 0;  // with the DRAM for itself
    double dram = 0;    // with all else that uses the DRAM
    double digest = 0;  // the digest kernel, for the state read and the state written
    double ssd = 0;
    double card = 0;  // the least of them
    Bound bound = Bound::lanes;
    double lanes_starved = 0;  // share of the lanes' cycles, with the DRAM for itself
    double lanes_blocked = 0;
};

CardEstimate estimate(const UpdaterSettings& settings, const CardRates& card);

}  // namespace nearstep::fpga
