#include "plan/calibration.hpp"

#include "base/error.hpp"
#include "plan/formulas.hpp"
#include "plan/sample.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace nearstep::plan {
namespace {

std::string row(const std::string& name, const std::string& state, double mparam_s) {
    return text(R"({"bench": "csd", "row": ")", name, R"(", "state": ")", state,
                R"(", "mparam_s": {"median": )", mparam_s, "}}\n");
}

const std::string kLines = row("raw.fp32", "fp32", 110) + row("step.fp32", "fp32", 105) +
                           row("durable.fp32", "fp32", 100) + row("step.q8", "q8", 200) +
                           row("durable.q8", "q8", 190);

TEST(Calibration, TakesTheStepOfTheRunsStateAndDurability) {
    EXPECT_EQ(read_calibration(kLines, "x", {.state = "fp32", .durability = "step"}).row,
              "durable.fp32");
    const Calibration q8 = read_calibration(kLines, "x", {.state = "q8", .durability = "none"});
    EXPECT_EQ(q8.row, "step.q8");
    EXPECT_DOUBLE_EQ(q8.parameters_per_s, 200e6);
}

TEST(Calibration, TakesThePlainRowsOfABenchWithoutStates) {
    const std::string lines =
        row("raw", "fp32", 50) + row("checksums", "fp32", 40) + row("durable", "fp32", 30);
    EXPECT_DOUBLE_EQ(read_calibration(lines, "x", {.durability = "step"}).parameters_per_s, 30e6);
    EXPECT_DOUBLE_EQ(read_calibration(lines, "x", {.durability = "none"}).parameters_per_s, 40e6);
}

TEST(Calibration, SaysWhatIsMissing) {
    const auto message_of = [](const std::string& lines) -> std::string {
        try {
            read_calibration(lines, "rates.json", {.state = "compact"});
        } catch (const ConfigError& error) {
            return error.what();
        }
        return "";
    };
    EXPECT_THAT(message_of(kLines), testing::HasSubstr("bench csd --state compact --json FILE"));
    EXPECT_THAT(message_of("no json\n"), testing::HasSubstr("rates.json has a line that is not"));
    EXPECT_THAT(message_of("{\"bench\": \"csd\", \"mparam_s\": 3}\n"),
                testing::HasSubstr("a line that is not"));
}

TEST(ACalibratedDevice, UpdatesAtTheMeasuredRate) {
    Problem problem = seven_billion(1);
    problem.site.device_updates = 1e6;
    calibrate({.parameters_per_s = 90e6}, problem.work.state_bytes, problem.site);
    const DeviceTime time = device_time(problem, 0, 0, 2);
    EXPECT_NEAR(1 / time.per_parameter(false, 6), 90e6, 1);
}

}  // namespace
}  // namespace nearstep::plan
