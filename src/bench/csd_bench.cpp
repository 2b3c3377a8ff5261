#include "bench/csd_bench.hpp"

#include "base/error.hpp"
#include "base/statistics.hpp"
#include "base/units.hpp"
#include "base/version.hpp"
#include "bench/csd_plan.hpp"
#include "bench/csd_row.hpp"
#include "csd/engine.hpp"
#include "csd/state_format.hpp"
#include "store/folder.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iostream>
#include <memory>
#include <vector>

namespace nearstep::bench {

namespace {

constexpr const char* kFormula =
    "Mparam/s = parameters * steps / seconds / 1e6; GB/s = bytes of state read and written per "
    "parameter * Mparam/s / 1e3; ratio = median over rounds of the row's Mparam/s over its "
    "ceiling's in the same round";

// Bytes read and written per parameter.
double step_bytes(const CsdRowSettings& row) {
    return 2.0 * static_cast<double>(csd::state_bytes(row.state, 64)) / (64 * shard::kTileElems);
}

// A row and its results in each round.
struct Measured {
    std::unique_ptr<CsdRow> row;
    std::vector<double> mparam_s = {};
    std::vector<double> cores = {};  // busy cores of this process
    std::size_t verified = 0;        // subgroups
};

double process_seconds() {
    timespec now{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

void measure(Measured& measured, const CsdBenchSettings& bench, std::size_t parameters) {
    const double before = process_seconds();
    const double seconds = measured.row->run(bench.steps);
    measured.cores.push_back((process_seconds() - before) / seconds);
    measured.mparam_s.push_back(static_cast<double>(parameters) * bench.steps / seconds / 1e6);
}

std::vector<Measured>::iterator search(std::vector<Measured>& all, const std::string& name) {
    return std::find_if(all.begin(), all.end(), [&](const Measured& measured) {
        return measured.row->settings().name == name;
    });
}

const Measured& find(std::vector<Measured>& all, const std::string& name) {
    const auto found = search(all, name);
    expects(found != all.end(), "a row names another row");
    return *found;
}

nlohmann::json spread_json(const std::vector<double>& values) {
    const Summary spread = summary_of(values);
    return {{"median", spread.median}, {"least", spread.least}, {"most", spread.most}};
}

nlohmann::json to_json(const Measured& measured, std::vector<Measured>& all,
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
        std::array<char, 64> out{};
        std::snprintf(out.data(), out.size(), "%.3f (%.2f-%.2f)", spread["median"].get<double>(),
                      spread["least"].get<double>(), spread["most"].get<double>());
        return out.data();
    };
    std::printf("%-12s %8.1f %6.2f %6.2f  %-18s %-30s %s\n", line["row"].get<std::string>().c_str(),
                line["mparam_s"]["median"].get<double>(), line["gb_s"].get<double>(),
                line["cores"].get<double>(), ratio("ratio").c_str(),
                line.contains("beside")
                    ? (ratio("ratio_beside") + " " + line["beside"].get<std::string>()).c_str()
                    : "",
                line["what"].get<std::string>().c_str());
}

// Opens the JSON file before measuring, so that no measurement is lost.
std::ofstream open_json(const std::string& path) {
    std::ofstream file;
    if (!path.empty()) {
        file.open(path, std::ios::trunc);
        if (!file) {
            throw ConfigError(text("The result file ", path,
                                   " cannot be written: name a file in a folder that exists and is "
                                   "writable."));
        }
    }
    return file;
}

void report(std::vector<Measured>& all, const CsdBenchSettings& bench, std::size_t parameters,
            std::ofstream& json) {
    std::printf("%s\n%-12s %8s %6s %6s  %-18s %-30s\n", kFormula, "row", "Mparam/s", "GB/s",
                "cores", "ratio to raw", "ratio to another row");
    for (const Measured& measured : all) {
        const nlohmann::json line = to_json(measured, all, bench, parameters);
        print_row(line);
        if (json.is_open()) {
            json << line.dump() << "\n";
        }
    }
    if (json.is_open() && !json.flush()) {
        throw ConfigError(
            text("The result file ", bench.json, " cannot be written: free some space."));
    }
}

// Lets another program choose the turns, so that other programs can run between them.
void serve(std::vector<Measured>& all, const CsdBenchSettings& bench, std::size_t parameters) {
    nlohmann::json names = nlohmann::json::array();
    for (const Measured& measured : all) {
        names.push_back(measured.row->settings().name);
    }
    std::cout << nlohmann::json{{"rows", names}, {"commit", commit()}, {"parameters", parameters}}
              << std::endl;
    for (std::string name; std::getline(std::cin, name);) {
        const auto row = search(all, name);
        if (row == all.end()) {
            throw ConfigError(
                text("There is no row \"", name, "\": name one of ", names.dump(), "."));
        }
        measure(*row, bench, parameters);
        std::cout << nlohmann::json{{"row", name},
                                    {"mparam_s", row->mparam_s.back()},
                                    {"cores", row->cores.back()},
                                    {"bytes_per_parameter", step_bytes(row->row->settings())},
                                    {"verified_subgroups", row->row->verify()}}
                  << std::endl;
    }
}

}  // namespace

void bench_csd(const CsdBenchSettings& bench) {
    std::ofstream json = open_json(bench.json);
    const auto codec = codec::make_codec({});
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
    std::vector<Measured> all;
    for (const CsdRowSettings& row : rows) {
        all.push_back({std::make_unique<CsdRow>(row, scene)});
        all.back().row->run(2);  // allocates the space of both generations
    }
    if (bench.is_on_demand) {
        return serve(all, bench, scene.parameters);
    }
    std::printf("commit %s, site %s, %.1f M parameters, %d rounds of %d steps; %s\n", commit(),
                bench.site.c_str(), static_cast<double>(scene.parameters) / 1e6, bench.rounds,
                bench.steps, all.back().row->describe_io().c_str());
    for (int round = 0; round < bench.rounds; ++round) {
        for (std::size_t i = 0; i < all.size(); ++i) {
            Measured& measured = all[(i + static_cast<std::size_t>(round)) % all.size()];
            measure(measured, bench, scene.parameters);
            if (round + 1 == bench.rounds) {
                measured.verified = measured.row->verify();
            }
        }
    }
    report(all, bench, scene.parameters, json);
}

}  // namespace nearstep::bench
