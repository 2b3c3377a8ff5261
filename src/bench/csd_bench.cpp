// Runs the rows of `nearstep bench csd` in turns and reports them. Used by the command.
#include "bench/csd_bench.hpp"

#include "base/error.hpp"
#include "base/executor.hpp"
#include "base/formatted.hpp"
#include "base/output_file.hpp"
#include "base/statistics.hpp"
#include "base/units.hpp"
#include "base/version.hpp"
#include "bench/csd_row.hpp"
#include "csd/state_format.hpp"
#include "csd/update_engine.hpp"
#include "store/storage_folder.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace nearstep::bench {

namespace {

CsdRowSettings row_of(const CsdBenchSettings& bench, const std::string& name,
                      const std::string& what, const std::string& ceiling,
                      const std::string& beside) {
    return {.name = name,
            .what = what,
            .ceiling = ceiling,
            .beside = beside,
            .slots = bench.slots,
            .io = bench.io};
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

// Plans the rows. Without settings.states, they have fp32 state and each differs in one part of a
// device. With settings.states there are, for each format, the moves alone, the step and the
// durable step, compared with those of the first format; where there is a GPU, also several devices
// without and with its help. Throws ConfigError for unknown or repeated formats.
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

constexpr const char* kFormula =
    "Mparam/s = parameters * steps / seconds / 1e6; GB/s = bytes of state read and written per "
    "parameter * Mparam/s / 1e3; ratio = median over rounds of the row's Mparam/s over its "
    "ceiling's in the same round; of memory = the rate of state, gradients and parameters over "
    "that "
    "of adding 1 in place with as many threads, in the same round";

// Bytes read and written per parameter.
double step_bytes(const CsdRowSettings& row) {
    return 2.0 * static_cast<double>(csd::state_bytes(row.state, 64)) / (64 * shard::kTileElems);
}

// Returns the same bytes in a step, with the gradient's payload and the new 16-bit parameter.
double memory_bytes(const CsdRowSettings& row, const codec::Codec& codec) {
    if (row.is_raw) {
        return step_bytes(row);
    }
    return step_bytes(row) + static_cast<double>(codec.payload_bytes()) / shard::kTileElems +
           static_cast<double>(size_bytes(Dtype::bf16));
}

// Adds 1 in place with as many threads as a run has: the rate of memory.
class InPlace {
public:
    InPlace() : words_(std::size_t{256} * MiB), pool_(pool_threads() - 1) { measure(); }

    // GB read and written per second.
    double measure() {
        const std::span<std::uint64_t> words = words_.as<std::uint64_t>();
        constexpr std::size_t kParts = 256;
        const std::size_t each = words.size() / kParts;
        const double seconds = seconds_of([&] {
            pool_.share(kParts, [&](std::size_t part, int) {
                csd::best_engine().increment(words.data() + part * each, each);
            });
        });
        return 2.0 * static_cast<double>(words_.size()) / seconds / 1e9;
    }

private:
    memory::Buffer words_;
    Executor pool_;
};

// A row and its results in each round.
struct Measured {
    std::unique_ptr<CsdRow> row;
    std::vector<double> mparam_s = {};
    std::vector<double> of_memory = {};  // share of the rate in place, measured after the row
    std::vector<double> cores = {};      // busy cores of this process
    std::size_t verified = 0;            // subgroups
};

double process_seconds() {
    timespec now{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

void measure(Measured& measured, const CsdBenchSettings& bench, const CsdScene& scene,
             InPlace& in_place) {
    const double before = process_seconds();
    const double seconds = measured.row->run(bench.steps);
    measured.cores.push_back((process_seconds() - before) / seconds);
    const double rate = static_cast<double>(scene.parameters) * bench.steps / seconds;
    measured.mparam_s.push_back(rate / 1e6);
    measured.of_memory.push_back(rate * memory_bytes(measured.row->settings(), *scene.codec) / 1e9 /
                                 in_place.measure());
}

const Measured& find(const std::vector<Measured>& all, const std::string& name) {
    const auto found = std::ranges::find(all, name, [](const Measured& one) -> const std::string& {
        return one.row->settings().name;
    });
    expects(found != all.end(), "a row names another row");
    return *found;
}

nlohmann::json spread_json(const std::vector<double>& values) {
    const Summary spread = summary_of(values);
    return {{"median", spread.median}, {"least", spread.least}, {"most", spread.most}};
}

nlohmann::json to_json(const Measured& measured, const std::vector<Measured>& all,
                       const CsdBenchSettings& bench, std::size_t parameters) {
    const CsdRowSettings& row = measured.row->settings();
    nlohmann::json line = {{"bench", "csd"},
                           {"row", row.name},
                           {"what", row.what},
                           {"formula", kFormula},
                           {"commit", commit()},
                           {"site", bench.site},
                           {"engine", csd::best_engine().name},
                           {"io", measured.row->describe_io()},
                           {"parameters", parameters},
                           {"state", csd::name_of(row.state)},
                           {"bytes_per_parameter", step_bytes(row)},
                           {"devices", row.devices},
                           {"slots", row.slots},
                           {"subgroup_tiles", bench.subgroup_tiles},
                           {"rounds", bench.rounds},
                           {"steps_per_round", bench.steps},
                           {"mparam_s", spread_json(measured.mparam_s)},
                           {"gb_s", summary_of(measured.mparam_s).median * step_bytes(row) / 1e3},
                           {"threads", pool_threads() / row.devices},
                           {"codec", bench.codec},
                           {"of_memory", spread_json(measured.of_memory)},
                           {"cores", summary_of(measured.cores).median},
                           {"verified_subgroups", measured.verified}};
    if (!row.ceiling.empty()) {
        const auto& ceiling = find(all, row.ceiling).mparam_s;
        line["ceiling"] = row.ceiling;
        line["ceiling_mparam_s"] = summary_of(ceiling).median;
        line["ratio"] = spread_json(ratios_of(measured.mparam_s, ceiling));
    }
    if (!row.beside.empty()) {
        line["beside"] = row.beside;
        line["ratio_beside"] =
            spread_json(ratios_of(measured.mparam_s, find(all, row.beside).mparam_s));
    }
    return line;
}

void print_row(const nlohmann::json& line) {
    const auto ratio = [&](const char* key) -> std::string {
        if (!line.contains(key)) {
            return "";
        }
        const nlohmann::json& spread = line[key];
        return formatted("%.3f (%.2f-%.2f)", spread["median"].get<double>(),
                         spread["least"].get<double>(), spread["most"].get<double>());
    };
    std::printf("%-12s %8.1f %6.2f %6.2f  %-18s %-18s %-30s %s\n",
                line["row"].get<std::string>().c_str(), line["mparam_s"]["median"].get<double>(),
                line["gb_s"].get<double>(), line["cores"].get<double>(), ratio("of_memory").c_str(),
                ratio("ratio").c_str(),
                line.contains("beside")
                    ? (ratio("ratio_beside") + " " + line["beside"].get<std::string>()).c_str()
                    : "",
                line["what"].get<std::string>().c_str());
}

void report(const std::vector<Measured>& all, const CsdBenchSettings& bench,
            std::size_t parameters) {
    std::string json;
    std::printf("%s\n%-12s %8s %6s %6s  %-18s %-18s %-30s\n", kFormula, "row", "Mparam/s", "GB/s",
                "cores", "of memory", "ratio to raw", "ratio to another row");
    for (const Measured& measured : all) {
        const nlohmann::json line = to_json(measured, all, bench, parameters);
        print_row(line);
        json += line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    }
    write_whole_file(bench.json, json);
}

}  // namespace

void bench_csd(const CsdBenchSettings& bench) {
    check_writable(bench.json);
    const auto codec = codec::make_codec({.name = bench.codec});
    CsdScene scene{.folder = bench.folder,
                   .parameters = shard::tiles_of(bench.parameters) * shard::kTileElems,
                   .subgroup_tiles = bench.subgroup_tiles,
                   .codec = codec.get()};
    const std::vector<CsdRowSettings> rows = plan_csd_rows(bench);
    std::vector<store::PlannedFile> planned;
    planned.reserve(rows.size());
    for (const CsdRowSettings& row : rows) {
        planned.push_back({bench.folder + "/" + row.name, CsdRow::storage_bytes(row, scene)});
    }
    store::check_folders(planned);
    scene.vector = memory::Buffer(scene.parameters * size_bytes(Dtype::bf16));
    if (memory::gpus() > 0) {
        scene.pinned.emplace(scene.vector.span());
    }
    std::vector<Measured> all;
    for (const CsdRowSettings& row : rows) {
        all.push_back({std::make_unique<CsdRow>(row, scene)});
        all.back().row->run(2);  // allocates the space of both generations
    }
    InPlace in_place;
    std::printf("commit %s, site %s, %.1f M parameters, %d rounds of %d steps; %s\n", commit(),
                bench.site.c_str(), static_cast<double>(scene.parameters) / 1e6, bench.rounds,
                bench.steps, all.back().row->describe_io().c_str());
    for (int round = 0; round < bench.rounds; ++round) {
        for (std::size_t i = 0; i < all.size(); ++i) {
            Measured& measured = all[(i + static_cast<std::size_t>(round)) % all.size()];
            measure(measured, bench, scene, in_place);
            if (round + 1 == bench.rounds) {
                measured.verified = measured.row->verify();
            }
        }
    }
    report(all, bench, scene.parameters);
}

double measure_drive(const std::string& folder) {
    constexpr std::size_t kParameters = 24'000'000;
    constexpr int kSteps = 2;
    const auto codec = codec::make_codec({.name = "dense"});
    CsdScene scene{.folder = folder,
                   .parameters = shard::tiles_of(kParameters) * shard::kTileElems,
                   .codec = codec.get()};
    const CsdRowSettings settings{
        .name = "suggest", .slots = 6, .is_raw = true, .is_durable = true};
    store::check_folders({{folder + "/suggest", CsdRow::storage_bytes(settings, scene)}});
    scene.vector = memory::Buffer(scene.parameters * size_bytes(Dtype::bf16));
    CsdRow row(settings, scene);
    row.run(2);  // allocates the space of both generations
    const double moved = 2 * static_cast<double>(csd::state_bytes(
                                 settings.state, shard::tiles_of(scene.parameters)));
    return kSteps * moved / row.run(kSteps);
}

}  // namespace nearstep::bench
