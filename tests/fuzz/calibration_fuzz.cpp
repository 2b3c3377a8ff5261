// A calibration, then a plan made with its rates.
#include "base/error.hpp"
#include "fuzz.hpp"
#include "plan/calibration.hpp"
#include "plan/plan_report.hpp"
#include "plan/sample_run.hpp"
#include "support/update_values.hpp"

namespace nearstep::fuzz {

std::vector<std::string> seeds() {
    const std::string device =
        R"({"bench": "csd", "row": "durable.fp32", "state": "fp32", "mparam_s": {"median": 110}})";
    const std::string network =
        R"({"bench": "network", "row": "x", "nodes": 2, "gb_s": 1.5, "latency_us": 20})";
    const std::string sizes =
        R"({"bench": "network", "row": "x", "message_bytes": 4096, "nodes": 1, "gb_s": 3})";
    const auto of = [](std::uint8_t flags, std::uint8_t nodes, const std::string& lines) {
        return Output().number(flags).number(std::uint8_t{0}).number(nodes).rest(lines);
    };
    return {of(0, 1, device + "\n" + network + "\n" + sizes + "\n"), of(1, 7, network + "\n"),
            of(0, 1, std::string(5000, '[') + "\n"), of(1, 0, device + "\n")};
}

void read(Bytes bytes) {
    Input input(bytes);
    config::RunSettings run = plan::run_on_site();
    run.link.scale = input.flag() ? 1 : 0;
    run.csd.state = kStateFormats.at(input.choice(kStateFormats.size()));
    const int nodes = 1 << input.choice(8);
    const Bytes rest = input.rest();
    const std::string path = scratch_folder() + "/calibration.json";
    write_file(path, std::string(rest.begin(), rest.end()));
    const plan::Calibration calibration =
        plan::read_calibration(plan::read_calibration_lines(path), path);
    plan::expect_device(calibration, path, run.csd);
    require(!plan::describe(calibration, run, nodes).empty() || nodes > 0,
            "there is a description");
    const plan::ModelSize size{.parameters = 1'000'000, .largest_block = 100'000, .blocks = 4};
    const plan::Problem problem{
        .work = plan::workload_of(run, size, 8),
        .site = plan::site_of(plan::calibrated(run, calibration, nodes), nodes),
        .nodes = nodes};
    const plan::Row row = plan::plan_for(problem, plan::space_of(problem, {plan::Codec::dense}));
    require(!plan::describe({row}).empty(), "a plan is described");
}

}  // namespace nearstep::fuzz
