#include "model/compute_format.hpp"

#include "model/network.hpp"
#include "support/test.hpp"

namespace nearstep::model {
namespace {

using config::ProductFormat;

config::ModelSettings with(Dtype dtype, ProductFormat compute) {
    return {.dtype = dtype, .compute = compute};
}

TEST(ComputeFormat, FollowsTheSettingAndTheParameters) {
    EXPECT_EQ(compute_format(with(Dtype::bf16, ProductFormat::fp32)), Dtype::fp32);
    EXPECT_EQ(compute_format(with(Dtype::bf16, ProductFormat::bf16)), Dtype::bf16);
    EXPECT_EQ(compute_format(with(Dtype::fp32, ProductFormat::bf16)), Dtype::bf16);
    EXPECT_EQ(compute_format(with(Dtype::fp32, ProductFormat::automatic)), Dtype::fp32);
    EXPECT_EQ(compute_format(with(Dtype::fp16, ProductFormat::automatic)), Dtype::fp32);
    EXPECT_EQ(compute_format(with(Dtype::fp16, ProductFormat::fp32)), Dtype::fp32);
}

TEST(ComputeFormat, RefusesWhatCannotBe) {
    EXPECT_THROW(compute_format(with(Dtype::fp16, ProductFormat::bf16)), ConfigError);
}

TEST(ComputeFormat, IsNamedByTheBackendsLine) {
    const std::string line = describe_backend(with(Dtype::fp16, ProductFormat::automatic));
    EXPECT_EQ(line.rfind("torch ", 0), 0U) << line;
    EXPECT_NE(line.find(", fp32 products"), std::string::npos) << line;
}

}  // namespace
}  // namespace nearstep::model
