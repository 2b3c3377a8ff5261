#include "model/compute_format.hpp"

#include "base/error.hpp"
#include "model/network.hpp"

#include <gtest/gtest.h>

namespace nearstep::model {
namespace {

config::ModelSettings with(Dtype dtype, const std::string& compute) {
    return {.dtype = dtype, .compute = compute};
}

TEST(ComputeFormat, FollowsTheSettingAndTheParameters) {
    EXPECT_EQ(compute_format(with(Dtype::bf16, "fp32")), Dtype::fp32);
    EXPECT_EQ(compute_format(with(Dtype::bf16, "bf16")), Dtype::bf16);
    EXPECT_EQ(compute_format(with(Dtype::fp32, "bf16")), Dtype::bf16);
    EXPECT_EQ(compute_format(with(Dtype::fp32, "auto")), Dtype::fp32);
    EXPECT_EQ(compute_format(with(Dtype::fp16, "auto")), Dtype::fp32);
    EXPECT_EQ(compute_format(with(Dtype::fp16, "fp32")), Dtype::fp32);
}

TEST(ComputeFormat, RefusesWhatCannotBe) {
    EXPECT_THROW(compute_format(with(Dtype::bf16, "int8")), ConfigError);
    EXPECT_THROW(compute_format(with(Dtype::fp16, "bf16")), ConfigError);
}

TEST(ComputeFormat, IsNamedByTheBackendsLine) {
    const std::string line = describe_backend(with(Dtype::fp16, "auto"));
    EXPECT_EQ(line.rfind("torch ", 0), 0U) << line;
    EXPECT_NE(line.find(", fp32 products"), std::string::npos) << line;
}

}  // namespace
}  // namespace nearstep::model
