// Tests what nearstep suggest proposes, and its forecasts.
#include "plan/suggest.hpp"

#include "support/test.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>

namespace nearstep::plan {
namespace {

using arith::StateFormat;
using nlohmann::json;

// Rows of docs/results/data that suggest offers as a way, by file and name.
struct Row {
    const char* file;
    const char* name;
    Way way;
    double gpu_gb;  // that the row may take
};

constexpr Way kSmall{.state = StateFormat::compact, .codec = Codec::q4};

Way in_memory(Way way, int micro_batch, Home home = Home::gpu) {
    way.keeping = csd::Keeping::once;
    way.micro_batch = micro_batch;
    way.home = home;
    return way;
}

Way on_drive(Way way, int micro_batch) {
    way.micro_batch = micro_batch;
    return way;
}

std::vector<Row> rows() {
    return {
        {"host", "nearstep-fp32", in_memory({}, 8), 78},
        {"aligned", "nearstep-q4-aligned", in_memory(kSmall, 8), 139},
        {"large_later", "nearstep-7b", in_memory(kSmall, 4), 60},
        {"large_later", "nearstep-7b-16gb", in_memory(kSmall, 8, Home::host), 16},
        {"large_later", "nearstep-13b-80gb", in_memory(kSmall, 2), 78},
        {"large_later", "nearstep-13b-stream-80gb", in_memory(kSmall, 8, Home::host), 78},
        {"sizes", "nearstep-7b-16gb", in_memory(kSmall, 4, Home::host), 16},
        {"sizes", "nearstep-7b-24gb", in_memory(kSmall, 8, Home::host), 24},
        {"large", "nearstep-7b", in_memory(kSmall, 2), 60},
        {"large", "nearstep-7b-fp32", in_memory({}, 2), 60},
        {"large", "nearstep-13b", in_memory(kSmall, 2), 139},
        {"large", "memory-7b-lora", in_memory({.trained = Trained::adapters}, 4), 139},
        {"large", "nearstep-7b-lora-16gb", in_memory({.trained = Trained::adapters}, 8, Home::host),
         16},
        {"disk", "nearstep-fp32", on_drive({}, 8), 139},
        {"disk", "nearstep-compact", on_drive({.state = StateFormat::compact}, 8), 139},
        {"disk", "nearstep-q4", on_drive(kSmall, 8), 139},
        {"means", "nearstep-fp32", on_drive({}, 8), 78},
        {"means", "nearstep-compact", on_drive({.state = StateFormat::compact}, 8), 78},
        {"means", "nearstep-q4", on_drive(kSmall, 8), 78},
        {"quarter",
         "nearstep-fp32-quarter",
         {.home = Home::storage, .codec = Codec::q4, .micro_batch = 32, .host_memory = 4.67e9},
         60},
    };
}

std::vector<json> lines_of(const Row& row) {
    std::ifstream file(std::string(NEARSTEP_RESULTS) + "/" + row.file + ".jsonl");
    std::vector<json> found;
    for (std::string line; std::getline(file, line);) {
        json one = json::parse(line);
        if (one.value("row", "") == row.name) {
            found.push_back(std::move(one));
        }
    }
    return found;
}

Task task_of(const json& line) {
    const std::string name = line["row"];
    const bool is_7b = name.find("7b") != std::string::npos;
    json shape = line["settings"].value("shape", json());
    if (shape.is_null() && (is_7b || name.find("13b") != std::string::npos)) {
        shape = {{"layers", is_7b ? 32 : 40},
                 {"heads", is_7b ? 32 : 40},
                 {"width", is_7b ? 4096 : 5120},
                 {"inner", is_7b ? 11008 : 13824},
                 {"context", 2048},
                 {"vocabulary", 32000}};
    } else if (shape.is_null()) {
        shape = {{"layers", 48},
                 {"heads", 25},
                 {"width", 1600},
                 {"context", 1024},
                 {"vocabulary", 50257}};
    }
    Task task;
    task.model.layers = shape["layers"];
    task.model.heads = shape["heads"];
    task.model.width = shape["width"];
    task.model.context = shape["context"];
    task.model.vocabulary = shape["vocabulary"];
    if (name.ends_with("aligned")) {
        task.model.vocabulary = 50304;
    }
    const double width = task.model.width;
    double of_layer = 12 * width * width;
    double around = width * task.model.vocabulary;
    if (shape.contains("inner")) {
        task.model.architecture = config::ModelFamily::llama;
        task.model.hidden = shape["inner"];
        task.model.tied = false;
        of_layer = 4 * width * width + 3 * width * task.model.hidden;
        around *= 2;
    }
    task.size = {.parameters = static_cast<std::size_t>(task.model.layers * of_layer + around),
                 .largest_block = static_cast<std::size_t>(of_layer),
                 .blocks = task.model.layers + 2};
    task.sequences = 65536 / task.model.context;
    if (name.ends_with("quarter")) {
        task.sequences /= 2;
    }
    return task;
}

// The machine of the row: its GPU by the data sheet, its memory, and the rate that its drive had.
Machine machine_of(const json& line, const Row& row) {
    const std::string name = line["machine"];
    Machine machine;
    machine.gpu_operations = kProductsOfPeak * 989.5e12;
    machine.gpu_memory = row.gpu_gb * 1e9;
    machine.gpu_memory_rate = name.find("H200") != std::string::npos ? 4.8e12 : 3.35e12;
    machine.gpu_link = 50e9;
    machine.host_memory = 250e9;
    machine.host_memory_rate = 118e9;
    machine.drive_rate = line.value("drive_gb_per_s", 0.0) * 1e9;
    machine.drive_free = 1e12;
    return machine;
}

TEST(Suggest, ForecastsTheMeasuredRows) {
    for (const Row& row : rows()) {
        const std::vector<json> lines = lines_of(row);
        EXPECT_FALSE(lines.empty()) << row.file << " " << row.name;
        for (const json& line : lines) {
            const Forecast found = forecast(machine_of(line, row), task_of(line), row.way);
            const double measured = line["tokens_per_s"];
            EXPECT_NEAR(found.tokens_per_s / measured, 1, 0.15) << row.file << " " << row.name;
        }
    }
}

Task seven_billion() {
    Task task;
    task.model.architecture = config::ModelFamily::llama;
    task.model.layers = task.model.heads = 32;
    task.model.width = 4096;
    task.model.hidden = 11008;
    task.model.vocabulary = 32000;
    task.model.context = 2048;
    task.model.tied = false;
    task.size = {.parameters = 6738000000, .largest_block = 202000000, .blocks = 34};
    return task;
}

// An RTX 4090 in a desktop.
Machine desktop() {
    Machine machine;
    machine.gpu_operations = kProductsOfPeak * 165e12;
    machine.gpu_memory = 24e9;
    machine.gpu_memory_rate = 1e12;
    machine.gpu_link = 25e9;
    machine.host_memory = 128e9;
    machine.host_memory_rate = 60e9;
    machine.drive_rate = 4e9;
    machine.drive_free = 1e12;
    return machine;
}

TEST(Suggest, StreamsWhatTheGpuDoesNotHold) {
    const std::vector<Forecast> ways = suggest(desktop(), seven_billion());
    ASSERT_EQ(ways.size(), 3);
    EXPECT_EQ(ways[0].way.trained, Trained::adapters);
    EXPECT_EQ(ways[1].way.home, Home::host);
    EXPECT_EQ(ways[2].way.home, Home::storage);
    for (const Forecast& one : ways) {
        EXPECT_LE(one.gpu_bytes, 24e9);
        EXPECT_LE(one.host_bytes, 128e9);
    }
    Machine large = desktop();
    large.gpu_memory = 139e9;
    const std::vector<Forecast> there = suggest(large, seven_billion());
    EXPECT_EQ(there.at(0).way.trained, Trained::adapters);
    EXPECT_EQ(there.at(0).way.home, Home::gpu);
    EXPECT_TRUE(std::ranges::any_of(there, [](const Forecast& one) {
        return one.way.trained == Trained::all && one.way.home == Home::gpu;
    }));
}

TEST(Suggest, NamesTheFastestFirst) {
    for (const double gpu : {24e9, 48e9, 80e9, 139e9}) {
        Machine machine = desktop();
        machine.gpu_memory = gpu;
        EXPECT_TRUE(
            std::ranges::is_sorted(suggest(machine, seven_billion()), {}, &Forecast::step_s));
    }
}

// 28 GB of state fit beside nothing that is as large as the parameters.
TEST(Suggest, StreamsFromStateThatTheHostHoldsAlone) {
    Machine machine = desktop();
    machine.gpu_memory = 48e9;
    machine.host_memory = 48e9;
    machine.drive_rate = 1e9;
    const std::vector<Forecast> ways = suggest(machine, seven_billion());
    const auto found =
        std::ranges::find(ways, Trained::all, [](const Forecast& one) { return one.way.trained; });
    ASSERT_NE(found, ways.end());
    EXPECT_EQ(found->way.home, Home::storage);
    EXPECT_EQ(found->way.state, StateFormat::compact);
    EXPECT_NE(found->way.keeping, csd::Keeping::twice);
    EXPECT_GT(found->host_bytes, 28e9);
    Way vector = found->way;
    vector.home = Home::host;
    vector.host_memory = 0;
    EXPECT_FALSE(forecast(machine, seven_billion(), vector).does_fit);
}

TEST(Suggest, ASlowDriveGetsMoreLogs) {
    Machine machine = desktop();
    machine.gpu_memory = 139e9;
    const auto logs_at = [&](double rate) {
        machine.drive_rate = rate;
        for (const Forecast& one : suggest(machine, seven_billion())) {
            if (one.way.keeping == csd::Keeping::logged) {
                return one.logged.logs;
            }
        }
        return std::size_t{0};
    };
    EXPECT_EQ(logs_at(4e9), csd::kUsualLogs);
    EXPECT_GE(logs_at(0.15e9), 2 * csd::kUsualLogs);
}

TEST(Suggest, NamesNoneThatDoesNotFit) {
    Machine machine = desktop();
    machine.drive_free = 10e9;
    machine.host_memory = 32e9;
    for (const Forecast& one : suggest(machine, seven_billion())) {
        EXPECT_EQ(one.way.trained, Trained::adapters);
    }
    machine.gpu_memory = 2e9;
    EXPECT_TRUE(suggest(machine, seven_billion()).empty());
}

TEST(Suggest, WithoutAGpuTheHostComputes) {
    Machine machine = desktop();
    machine.has_gpu = false;
    machine.gpu_operations = 1e12;
    machine.gpu_memory = machine.host_memory;
    machine.gpu_memory_rate = machine.gpu_link = machine.host_memory_rate;
    const std::vector<Forecast> ways = suggest(machine, seven_billion());
    ASSERT_FALSE(ways.empty());
    for (const Forecast& one : ways) {
        EXPECT_EQ(one.way.home, Home::gpu);
        EXPECT_LE(one.gpu_bytes + one.host_bytes, 128e9);
    }
}

}  // namespace
}  // namespace nearstep::plan
