#include "report/findings.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nearstep::report {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

json step(const char* column, int devices, double forward, double backward, double update) {
    return {{"origin", "measured"},
            {"column", column},
            {"devices", devices},
            {"forward_s", forward},
            {"backward_s", backward},
            {"update_s", update},
            {"step_s", forward + backward + update}};
}

TEST(FindingsOfSteps, SayWhatTakesMostAndWhetherAnotherDevicePays) {
    const json rows = {step("su+o", 4, 1, 1, 4),   step("su+o", 2, 1, 1, 8),
                       step("base", 2, 1, 1, 9),   step("base", 4, 1, 1, 8.9),
                       step("ours", 4, 1, 3, 0.5), step("ours", 2, 1, 3, 1)};
    EXPECT_THAT(
        findings_of_steps(rows),
        ElementsAre(HasSubstr("su+o with 4 devices: the update takes 67 % of a step of 6 s; "
                              "the last 2 devices shortened it by 40 %. The next device "
                              "still pays."),
                    HasSubstr("More devices bring no more here."),
                    HasSubstr("Compute and gradients now take most")));
}

TEST(FindingsOfSteps, LeaveOutWhatWasNotMeasured) {
    json modelled = step("su+o", 1, 1, 1, 1);
    modelled["origin"] = "modelled";
    EXPECT_THAT(findings_of_steps({modelled, {{"column", "su"}}, 3, "x"}), ElementsAre());
}

TEST(FindingsOfSteps, TellTheTopologiesAndNodesOfAnExperimentApart) {
    json apart = step("ours", 12, 1, 1, 2);
    apart["gpu_traffic"] = "apart";
    json whole = apart;
    whole["gpu_traffic"] = "whole";
    whole["ranks"] = 3;
    json nodes = step("", 8, 1, 1, 2);
    nodes["series"] = "ours: 2 nodes, more CSDs";
    EXPECT_THAT(
        findings_of_steps({apart, whole, nodes}),
        ElementsAre(HasSubstr("ours, GPU traffic apart, with 12 devices: the update takes 50 %"),
                    HasSubstr("ours, GPU traffic whole, with 12 devices and 3 ranks: the update"),
                    HasSubstr("ours: 2 nodes, more CSDs with 8 devices: the update takes")));
}

TEST(FindingsOfSteps, SayWhichNumberOfDevicesIsCheapest) {
    json rows = {step("ours", 4, 1, 1, 2), step("ours", 8, 1, 1, 1), step("ours", 10, 1, 1, 0.9)};
    rows[0]["relative_cost"] = 0.2;
    rows[1]["relative_cost"] = 0.1;
    rows[2]["relative_cost"] = 0.125;
    EXPECT_THAT(findings_of_steps(rows),
                ElementsAre("measured, ours: of 3 numbers of devices 8 give the cheapest step, "
                            "relative cost 0.1. Devices beyond cost more than they save."));
}

TEST(FindingsOfPlans, SayOnceForASeriesWhatBinds) {
    const auto row = [](int nodes, const char* binds) {
        return json{
            {"series", "weak"}, {"nodes", nodes}, {"devices", 10 * nodes}, {"binds", binds}};
    };
    EXPECT_THAT(findings_of_plans({row(1, "device"), row(2, "device"), row(4, "GPU")}),
                ElementsAre(HasSubstr("weak, 1 nodes and more with 10 devices: device binds. What"),
                            HasSubstr("weak, 4 nodes and more with 40 devices: GPU binds. What")));
}

TEST(FindingsOfPlans, NameWhatBindsAndWhatToAdd) {
    const json rows = {{{"nodes", 2},
                        {"devices", 8},
                        {"binds", "device"},
                        {"gain_if_twice_as_fast", {{"device", 0.4}}}},
                       {{"nodes", 4}, {"refused", "too small"}}};
    EXPECT_THAT(findings_of_plans(rows),
                ElementsAre("modelled, 2 nodes with 8 devices: device binds, twice as fast it "
                            "shortens the step by 40 %. What to add next: more CSDs in each node "
                            "(or a narrower csd.state)."));
}

}  // namespace
}  // namespace nearstep::report
