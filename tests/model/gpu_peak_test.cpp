// Tests the table of GPUs' peak speeds, and the operations of a token.
#include "model/gpu_peak.hpp"

#include "support/test.hpp"

namespace nearstep::model {
namespace {

TEST(PeakOf, KnowsGpusByTheirNames) {
    EXPECT_EQ(peak_operations("NVIDIA H200", Dtype::bf16), 989.5e12);
    EXPECT_EQ(peak_operations("NVIDIA H100 80GB HBM3", Dtype::fp16), 989.5e12);
    EXPECT_EQ(peak_operations("NVIDIA H100 PCIe", Dtype::bf16), 756.5e12);
    EXPECT_EQ(peak_operations("NVIDIA H200 NVL", Dtype::bf16), 835.5e12);
    EXPECT_EQ(peak_operations("NVIDIA A100-SXM4-80GB", Dtype::bf16), 312e12);
    EXPECT_EQ(peak_operations("NVIDIA A10", Dtype::bf16), 125e12);
}

TEST(PeakOf, IsNoneWhereTheTableHasNone) {
    EXPECT_FALSE(peak_operations("NVIDIA A10G", Dtype::bf16));
    EXPECT_FALSE(peak_operations("NVIDIA RTX A4000", Dtype::bf16));
    EXPECT_FALSE(peak_operations("", Dtype::bf16));
    EXPECT_FALSE(peak_operations("NVIDIA H200", Dtype::fp32));
}

TEST(OperationsOfAToken, AreSixPerParameterAndThoseOfAttention) {
    const config::ModelSettings settings{.layers = 12, .width = 768, .context = 1024};
    EXPECT_EQ(operations_per_token(settings, 124'439'808),
              6.0 * 124'439'808 + 12.0 * 12 * 768 * 1024);
    config::ModelSettings untied = settings;
    untied.tied = false;
    untied.vocabulary = 1000;
    EXPECT_EQ(operations_per_token(untied, 124'439'808 + 768'000),
              operations_per_token(settings, 124'439'808));
}

}  // namespace
}  // namespace nearstep::model
