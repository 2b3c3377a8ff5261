#include "train/gpu_report.hpp"

#include <gtest/gtest.h>

namespace nearstep::train {
namespace {

constexpr std::size_t kFree = 100'000'000'000;

TEST(GpuBudget, IsARanksPartOfWhatIsFreeOrLess) {
    EXPECT_EQ(gpu_budget(0, kFree, 1), 95'000'000'000U);
    EXPECT_EQ(gpu_budget(0, kFree, 2), 47'500'000'000U);
    EXPECT_EQ(gpu_budget(16, kFree, 2), 16'000'000'000U);
    EXPECT_EQ(gpu_budget(200, kFree, 1), 95'000'000'000U);
}

TEST(FlopUtilisation, IsOfAllGpus) {
    const GpuReport report{.ranks_per_gpu = 2, .peak_operations = 1e12};
    // 4 ranks on 2 GPUs.
    EXPECT_DOUBLE_EQ(*flop_utilisation(report, 1000, 1e9, 4), 0.5);
    EXPECT_FALSE(flop_utilisation(GpuReport{}, 1000, 1e9, 4));
}

TEST(GpuReports, SayWhatWasTakenAndUsed) {
    GpuReport report{.name = "NVIDIA H200"};
    report.most_bytes = 5'200'000'000;
    const std::string line = describe(report, 0.4321);
    EXPECT_NE(line.find("GPU NVIDIA H200: 5.2 GB taken at most"), std::string::npos) << line;
    EXPECT_NE(line.find("utilisation 43.2 %"), std::string::npos) << line;
    EXPECT_EQ(describe(report, std::nullopt).find("utilisation"), std::string::npos);
}

}  // namespace
}  // namespace nearstep::train
