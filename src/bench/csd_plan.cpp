// Chooses the rows of `nearstep bench csd`. Used by csd_bench.cpp.
#include "bench/csd_plan.hpp"

#include "base/error.hpp"
#include "csd/state_format.hpp"

#include <algorithm>
#include <string>

namespace nearstep::bench {

namespace {

CsdRowSettings row_of(const CsdBenchSettings& bench, const std::string& name,
                      const std::string& what, const std::string& ceiling,
                      const std::string& beside) {
    CsdRowSettings row;
    row.name = name;
    row.what = what;
    row.ceiling = ceiling;
    row.beside = beside;
    row.slots = bench.slots;
    row.io = bench.io;
    return row;
}

std::vector<CsdRowSettings> rows_of_device(const CsdBenchSettings& bench) {
    using store::IoKind;
    using store::PayloadDigest;
    const auto row = [&](const char* name, const char* what, const char* beside) {
        return row_of(bench, name, what, "raw", beside);
    };
    CsdRowSettings raw = row("raw", "the reads and writes of a step alone", "");
    raw.is_raw = true;
    raw.ceiling = "";
    CsdRowSettings deep = row("raw-deep", "the same with twice the slots", "raw");
    deep.is_raw = true;
    deep.slots = 2 * bench.slots;
    CsdRowSettings step = row("step", "step without checksums", "");
    step.digest = PayloadDigest::absent;
    const CsdRowSettings checked = row("checksums", "step with checksums", "step");
    CsdRowSettings durable = row("durable", "step with checksums and a flush", "checksums");
    durable.is_durable = true;
    CsdRowSettings raw_threads = row("raw-threads", "raw, with threads for I/O", "raw");
    raw_threads.is_raw = true;
    raw_threads.io = IoKind::threads;
    CsdRowSettings threads = row("threads", "checksums, with threads for I/O", "checksums");
    threads.io = IoKind::threads;
    CsdRowSettings several = row("devices", "checksums, several devices on this disk", "checksums");
    several.devices = bench.devices;
    return {raw, deep, step, checked, durable, raw_threads, threads, several};
}

void add_rows_of_state(const CsdBenchSettings& bench, const std::string& state,
                       std::vector<CsdRowSettings>& rows) {
    const std::string& first = bench.states.front();
    const std::string raw_name = "raw." + state;
    const auto row = [&](const std::string& kind, const char* what) {
        CsdRowSettings made = row_of(bench, text(kind, ".", state), what, raw_name,
                                     state == first ? "" : text(kind, ".", first));
        made.state = parse_word<csd::StateFormat>("state format", state);
        return made;
    };
    CsdRowSettings raw = row("raw", "the reads and writes of a step alone");
    raw.is_raw = true;
    raw.ceiling = "";
    rows.push_back(raw);
    rows.push_back(row("step", "step with checksums"));
    CsdRowSettings durable = row("durable", "step with checksums and a flush");
    durable.is_durable = true;
    rows.push_back(durable);
    if (memory::gpus() > 0) {
        CsdRowSettings several = row("devices", "step with checksums, several devices");
        several.devices = bench.devices;
        CsdRowSettings gpu = several;
        gpu.name = text("gpu.", state);
        gpu.what = "the same, where GPU 0 helps if the state is in memory";
        gpu.beside = several.name;
        gpu.has_gpu = true;
        rows.insert(rows.end(), {several, gpu});
    }
}

}  // namespace

std::vector<CsdRowSettings> plan_csd_rows(const CsdBenchSettings& bench) {
    if (bench.states.empty()) {
        return rows_of_device(bench);
    }
    std::vector<CsdRowSettings> rows;
    for (const std::string& state : bench.states) {
        if (std::ranges::count(bench.states, state) > 1) {
            throw ConfigError(text("--state names ", state, " twice: name each format once."));
        }
        add_rows_of_state(bench, state, rows);
    }
    return rows;
}

}  // namespace nearstep::bench
