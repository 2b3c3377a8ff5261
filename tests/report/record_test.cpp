// Tests what a run prints of the endurance of its drives and the use of its GPUs.
#include "report/lines.hpp"
#include "report/summary.hpp"
#include "support/test.hpp"

#include <nlohmann/json.hpp>

namespace nearstep::report {
namespace {

RunRecord record_of_mode_base() {
    RunRecord record{.run = {}};
    record.run.mode = config::Mode::base;
    return record;
}

TEST(EnduranceTest, IsOfTheDeviceThatIsWrittenMost) {
    // 10 and 20 bytes per step, 5 steps in 50 s: the second device is worn at 2 bytes/s.
    const Endurance endurance = measure_endurance({100, 200}, {150, 300}, 5, 50, 86400 * 2e-12);
    EXPECT_THAT(endurance.written_bytes, ElementsAre(150, 300));
    EXPECT_THAT(endurance.written_bytes_per_step, ElementsAre(10, 20));
    ASSERT_TRUE(endurance.days_to_rated_tbw);
    EXPECT_NEAR(*endurance.days_to_rated_tbw, 1, 1e-9);
    EXPECT_THAT(describe(endurance), HasSubstr("1 days"));
}

TEST(EnduranceTest, SaysNothingOfDaysWithoutARatingOrSteps) {
    const Endurance unrated = measure_endurance({0}, {10}, 1, 1, 0);
    EXPECT_FALSE(unrated.days_to_rated_tbw);
    EXPECT_FALSE(measure_endurance({10}, {10}, 0, 0, 100).days_to_rated_tbw);
    EXPECT_THAT(describe(unrated), Not(HasSubstr("days")));
    RunRecord record = record_of_mode_base();
    record.endurance = unrated;
    EXPECT_TRUE(to_json(record)["endurance"]["days_to_rated_tbw"].is_null());
}

TEST(FlopUtilisation, IsOfAllGpus) {
    RunRecord record = record_of_mode_base();
    record.ranks = 4;
    record.steps = {StepReport()};
    record.seconds = 1;
    EXPECT_FALSE(flop_utilisation(record));
    record.gpu = GpuUse{.ranks_per_gpu = 2};
    EXPECT_FALSE(flop_utilisation(record));
    record.gpu->peak_operations = 1e12;  // of each of two GPUs
    const double operations =
        record.tokens_per_step() * to_json(record)["model_operations_per_token"].get<double>();
    EXPECT_DOUBLE_EQ(*flop_utilisation(record), operations / 2e12);
}

TEST(GpuLine, SaysWhatWasTakenAndUsed) {
    const GpuUse use{.name = "NVIDIA H200", .most_bytes = 5'200'000'000};
    EXPECT_THAT(describe(use, 0.4321), AllOf(HasSubstr("GPU NVIDIA H200: 5.2 GB taken at most"),
                                             HasSubstr("utilisation 43.2 %")));
    EXPECT_THAT(describe(use, std::nullopt), Not(HasSubstr("utilisation")));
}

}  // namespace
}  // namespace nearstep::report
