// Tests what the planner takes from measured rows.
#include "plan/calibration.hpp"

#include "plan/formulas.hpp"
#include "plan/problem.hpp"
#include "plan/sample_run.hpp"
#include "support/test.hpp"

namespace nearstep::plan {
namespace {

std::string row(const std::string& name, const std::string& state, double mparam_s) {
    return text(R"({"bench": "csd", "row": ")", name, R"(", "state": ")", state,
                R"(", "mparam_s": {"median": )", mparam_s, "}}\n");
}

std::string size_of(int nodes, double gb_s) {
    return text(R"({"bench": "network", "row": "x", "message_bytes": 4096, "nodes": )", nodes,
                R"(, "gb_s": )", gb_s, "}\n");
}

std::string fit(int nodes, double gb_s, double latency_us) {
    return text(R"({"bench": "network", "row": ")", nodes, R"( nodes, fit", "nodes": )", nodes,
                R"(, "gb_s": )", gb_s, R"(, "latency_us": )", latency_us, "}\n");
}

const std::string kDevices = row("raw.fp32", "fp32", 110) + row("step.fp32", "fp32", 105) +
                             row("durable.fp32", "fp32", 100) + row("step.q8", "q8", 200) +
                             row("durable.q8", "q8", 190);
const std::string kNetwork =
    fit(8, 6, 30) + size_of(8, 1) + fit(2, 10, 20) + fit(4, 8, 0) + fit(1, 40, 2);

Site calibrated_site(const config::RunSettings& run, const std::string& lines, int nodes) {
    return site_of(calibrated(run, read_calibration(lines, "x"), nodes), nodes);
}

TEST(Calibration, HasTheStepOfTheRunsStateAndDurability) {
    const Calibration found = read_calibration(kDevices, "x");
    EXPECT_EQ(
        found.device({.state = arith::StateFormat::fp32, .durability = config::Durability::step})
            ->row,
        "durable.fp32");
    const DeviceRate* q8 =
        found.device({.state = arith::StateFormat::q8, .durability = config::Durability::none});
    EXPECT_EQ(q8->row, "step.q8");
    EXPECT_DOUBLE_EQ(q8->parameters_per_s, 200e6);
    EXPECT_EQ(found.device({.state = arith::StateFormat::compact}), nullptr);
}

TEST(Calibration, HasThePlainRowsOfABenchWithoutStates) {
    const Calibration found = read_calibration(
        row("raw", "fp32", 50) + row("checksums", "fp32", 40) + row("durable", "fp32", 30), "x");
    EXPECT_DOUBLE_EQ(found.device({.durability = config::Durability::step})->parameters_per_s,
                     30e6);
    EXPECT_DOUBLE_EQ(found.device({.durability = config::Durability::none})->parameters_per_s,
                     40e6);
}

TEST(Calibration, HasTheNetworkOfTheLargestGroupThatIsNotLarger) {
    const Calibration found = read_calibration(kNetwork, "x");
    EXPECT_EQ(found.between(1), nullptr);
    EXPECT_EQ(found.between(2)->nodes, 2);
    EXPECT_EQ(found.between(7)->nodes, 4);
    EXPECT_EQ(found.between(8)->nodes, 8);
    EXPECT_EQ(found.between(1000)->nodes, 8);
    EXPECT_EQ(read_calibration(fit(8, 6, 30), "x").between(2)->nodes, 8);
    EXPECT_EQ(found.inside()->nodes, 1);
    EXPECT_EQ(read_calibration(fit(8, 6, 30), "x").inside(), nullptr);
}

TEST(Calibration, OfTwoRowsWithTheSameNameTheLaterCounts) {
    const Calibration found =
        read_calibration(kDevices + kNetwork + row("durable.q8", "q8", 19) + fit(2, 1, 2), "x");
    EXPECT_DOUBLE_EQ(found.device({.state = arith::StateFormat::q8})->parameters_per_s, 19e6);
    EXPECT_DOUBLE_EQ(found.between(2)->bytes_per_s, 1e9);
    EXPECT_DOUBLE_EQ(found.between(2)->latency_us, 2);
}

TEST(Calibration, SaysWhatIsMissingOrWrong) {
    const auto message_of_lines = [&](const std::string& lines) {
        return message_of([&] { read_calibration(lines, "rates.json"); });
    };
    for (const char* line :
         {"no json\n", "{\"bench\": \"csd\", \"mparam_s\": 3}\n", "[1]\n", "\n",
          "{\"bench\": \"codec\"}\n", "{\"bench\": \"network\", \"nodes\": 2}\n",
          "{\"bench\": \"network\", \"nodes\": 2, \"gb_s\": 1}\n",
          "{\"bench\": \"network\", \"nodes\": 2, \"gb_s\": -1, \"latency_us\": 1}\n",
          "{\"bench\": \"network\", \"nodes\": 1e300, \"gb_s\": 1, \"latency_us\": 1}\n",
          "{\"bench\": 7}\n"}) {
        EXPECT_THAT(message_of_lines(kNetwork + line),
                    HasSubstr("rates.json has a line, number 6, that is not of nearstep bench csd"))
            << line;
    }
    EXPECT_THAT(message_of_lines(""), HasSubstr("rates.json has nothing to take"));
    const Calibration devices = read_calibration(kDevices, "x");
    EXPECT_THAT(
        message_of([&] { expect_device(devices, "x", {.state = arith::StateFormat::compact}); }),
        HasSubstr("bench csd --state compact --json FILE"));
    EXPECT_NO_THROW(expect_device(devices, "x", {.state = arith::StateFormat::q8}));
    EXPECT_NO_THROW(expect_device(read_calibration(kNetwork, "x"), "x",
                                  {.state = arith::StateFormat::compact}));
    EXPECT_THAT(message_of([] { read_calibration_lines("/nowhere/rates.json"); }),
                HasSubstr("/nowhere/rates.json cannot be read"));
}

TEST(ACalibratedDevice, UpdatesAtTheMeasuredRate) {
    Problem problem;
    problem.work.state_bytes = 12;
    problem.site = calibrated_site(run_on_site(), row("durable.fp32", "fp32", 90), 1);
    const DeviceTime time = device_time(problem, 0, 2);
    EXPECT_NEAR(1 / time.per_parameter(false, 6), 90e6, 1);
    EXPECT_DOUBLE_EQ(problem.site.network, 12.5e9);
}

TEST(ACalibratedNetwork, HasTheMeasuredRateAndLatency) {
    const Site site = calibrated_site(run_on_site(), kNetwork, 2);
    EXPECT_DOUBLE_EQ(site.network, 10e9);
    EXPECT_DOUBLE_EQ(site.latency_s, 20e-6);
    EXPECT_DOUBLE_EQ(site.device_read, 3.0e9);
    EXPECT_DOUBLE_EQ(site.device_updates, 1e6);
    EXPECT_DOUBLE_EQ(calibrated_site(run_on_site(), kNetwork, 1).network, 12.5e9);
}

TEST(ACalibratedNetwork, NeedsNoRateInTheSite) {
    config::RunSettings run = run_on_site();
    run.link.network_gb_s = 0;
    EXPECT_DOUBLE_EQ(calibrated_site(run, kNetwork, 4).network, 8e9);
}

TEST(CalibratedRates, AreTheSlowerOnesWhereTransfersAreHeldToTheSites) {
    config::RunSettings run = run_on_site();
    run.link.scale = 0.5;  // network 6.25 GB/s, drives 1.5 and 0.9, engine 0.5
    const std::string lines = row("durable.fp32", "fp32", 100);  // 1.2 GB/s each way
    Site site = calibrated_site(run, lines + fit(2, 10, 20), 2);
    EXPECT_DOUBLE_EQ(site.network, 6.25e9);
    EXPECT_DOUBLE_EQ(site.latency_s, 20e-6);
    EXPECT_DOUBLE_EQ(site.device_read, 1.2e9);
    EXPECT_DOUBLE_EQ(site.device_write, 0.9e9);
    EXPECT_DOUBLE_EQ(site.device_updates, 0.5e6);
    site = calibrated_site(run, lines + fit(2, 5, 20), 2);
    EXPECT_DOUBLE_EQ(site.network, 5e9);
}

TEST(TheRateInsideANode, HoldsForGpusThatExchangeByWayOfTheHost) {
    config::RunSettings run = run_on_site();
    EXPECT_DOUBLE_EQ(calibrated_site(run, fit(1, 7, 2), 1).gpu_to_gpu, 7e9);
    EXPECT_DOUBLE_EQ(calibrated_site(run, fit(1, 70, 2), 1).gpu_to_gpu, 25e9);
    run.plan.gpu_to_gpu_gb_s = 300;
    EXPECT_DOUBLE_EQ(calibrated_site(run, fit(1, 7, 2), 1).gpu_to_gpu, 300e9);
}

TEST(Calibration, IsDescribed) {
    EXPECT_THAT(
        describe(read_calibration(kDevices + kNetwork, "x"), run_on_site(), 3),
        ElementsAre(
            "devices as measured: row durable.fp32, 100 Mparam/s each",
            "network as measured: row 2 nodes, fit, 10 GB/s from a node and 20 us a message",
            "inside a node as measured: row 1 nodes, fit, 40 GB/s from a rank"));
    EXPECT_THAT(describe(Calibration{}, run_on_site(), 3), ElementsAre());
}

}  // namespace
}  // namespace nearstep::plan
