// Benchmark of computational storage devices: steps of a device against the raw rate of its disk.
#pragma once

#include "store/transport.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace nearstep::bench {

struct CsdBenchSettings {
    std::string folder = "runs/bench";  // on the disk to measure; its files are removed afterwards
    std::size_t parameters = 50'000'000;  // rounded up to whole tiles
    int devices = 2;                      // in the row with several devices on this disk
    int slots = 6;
    std::size_t subgroup_tiles = 16;
    int rounds = 7;
    int steps = 2;                         // per row and round
    std::string codec = "dense";           // of the gradients
    std::vector<std::string> states = {};  // formats to compare; empty: parts of a device
    store::IoKind io = store::IoKind::automatic;
    std::string site = "localhost";
    std::string json;  // file for a JSON line per row; empty: none
};

// Runs all rows once per round in rotating order, compares each with its ceiling in the same round,
// and prints a table to stdout. Throws ConfigError if the folder is unusable, Error if a row's
// state is wrong.
void bench_csd(const CsdBenchSettings& settings);

// Bytes per second that the drive of `folder` reads and writes, both together, in steps of a device
// that only moves data and flushes each of them. Takes 0.6 GB there for about a second. Throws
// ConfigError if the folder is unusable.
double measure_drive(const std::string& folder);

}  // namespace nearstep::bench
