#include "train/gpu_report.hpp"

#include "base/error.hpp"
#include "base/units.hpp"

#include <nlohmann/json.hpp>

#include <cmath>

namespace nearstep::train {

std::optional<double> flop_utilisation(const GpuReport& report, double tokens_per_s,
                                       double operations_per_token, int ranks) {
    if (!report.peak_operations) {
        return std::nullopt;
    }
    const double gpus = static_cast<double>(ranks) / report.ranks_per_gpu;
    return tokens_per_s * operations_per_token / (*report.peak_operations * gpus);
}

std::string describe(const GpuReport& report, std::optional<double> utilisation) {
    const auto gigabytes = [](std::size_t bytes) {
        return human_bytes(static_cast<double>(bytes));
    };
    std::string line = text("GPU ", report.name, ": ", gigabytes(report.most_bytes),
                            " taken at most, ", gigabytes(report.most_tensor_bytes),
                            " of it in use, ", gigabytes(report.plan.total_bytes()), " planned of ",
                            gigabytes(report.plan.budget_bytes), "; a step moved ",
                            gigabytes(report.parameter_step_bytes), " of parameters and ",
                            gigabytes(report.input_step_bytes), " of blocks' inputs over the link");
    if (utilisation) {
        line += text("; model FLOP utilisation ", std::round(*utilisation * 1000) / 10, " %");
    }
    return line;
}

nlohmann::json to_json(const GpuReport& report) {
    const model::GpuPlan& plan = report.plan;
    nlohmann::json json = {
        {"name", report.name},
        {"ranks_per_gpu", report.ranks_per_gpu},
        {"peak_tflops", nullptr},
        {"most_bytes", report.most_bytes},
        {"most_tensor_bytes", report.most_tensor_bytes},
        {"step_bytes",
         {{"parameters", report.parameter_step_bytes}, {"inputs", report.input_step_bytes}}},
        {"plan",
         {{"total_bytes", plan.total_bytes()},
          {"budget_bytes", plan.budget_bytes},
          {"blocks", plan.blocks},
          {"slots", plan.residence.slots},
          {"kept_blocks", plan.residence.kept_blocks},
          {"kept_bytes", plan.kept_bytes},
          {"inputs_on_host", plan.residence.are_inputs_on_host},
          {"parameter_bytes", plan.parameter_bytes},
          {"input_bytes", plan.input_bytes},
          {"gradient_bytes", plan.gradient_bytes},
          {"workspace_bytes", plan.workspace_bytes},
          {"host_bytes", plan.host_bytes},
          {"step_bytes", plan.link_bytes}}}};
    if (report.peak_operations) {
        json["peak_tflops"] = *report.peak_operations / 1e12;
    }
    return json;
}

}  // namespace nearstep::train
