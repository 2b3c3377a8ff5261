// Tests which device and format a network computes in.
#include "model/compute_device.hpp"

#include "config/run_settings.hpp"
#include "model/network.hpp"
#include "support/test.hpp"

namespace nearstep::model {
namespace {

TEST(ComputeDeviceOf, CpuNeedsNoGpu) {
    EXPECT_FALSE(choose_device(config::Processor::cpu, 3).is_gpu());
}

TEST(ComputeDeviceOf, CudaIsAGpuOrASentence) {
    const ComputeDevice found = choose_device(config::Processor::automatic, 0);
    if (found.is_gpu()) {
        EXPECT_EQ(*choose_device(config::Processor::cuda, 0).gpu, 0);
        return;
    }
    EXPECT_THAT(message_of([] { choose_device(config::Processor::cuda, 0); }),
                testing::HasSubstr("set model.device to"));
}

TEST(ComputeDeviceOf, OnAGpuTheParametersFormatIsComputedIn) {
    config::ModelSettings settings;
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
        settings.dtype = dtype;
        EXPECT_EQ(compute_format(settings, {.gpu = 0}), dtype);
    }
    settings.dtype = Dtype::bf16;
    settings.compute = config::ProductFormat::fp32;
    EXPECT_EQ(compute_format(settings, {.gpu = 0}), Dtype::fp32);
}

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
