#include "model/compute_device.hpp"

#include "config/run.hpp"
#include "model/compute_format.hpp"
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

}  // namespace
}  // namespace nearstep::model
