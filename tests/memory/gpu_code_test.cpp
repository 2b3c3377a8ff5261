// Compiles every kernel by the NVRTC of each version of CUDA that is here; no GPU is needed. With
// NEARSTEP_LONG, as gpu_code_versions_test.py sets it, for every GPU since Turing that the version
// knows.
#include "arith/gradient_lane.hpp"
#include "memory/gpu_launch.hpp"
#include "memory/nvrtc.hpp"
#include "support/test.hpp"

namespace nearstep::memory {
namespace {

constexpr std::array<KernelLaunch, 11> kKernels = {{
    {.file = "memory/gpu_arrays.cu", .kernel = "memory::convert<std::uint16_t>"},
    {.file = "memory/gpu_arrays.cu", .kernel = "memory::add<float, std::uint16_t>"},
    {.file = "memory/gpu_arrays.cu", .kernel = "memory::add_up"},
    {.file = "codec/gpu_dense.cu", .kernel = "codec::encode_dense"},
    {.file = "codec/gpu_dense.cu", .kernel = "codec::add<float>"},
    {.file = "codec/gpu_block.cu",
     .kernel = "codec::encode<arith::GradientCodec::q4, arith::Rounding::stochastic>"},
    {.file = "codec/gpu_squares.cu", .kernel = "codec::add_up<arith::GradientCodec::topk_bf16>"},
    {.file = "codec/gpu_squares.cu", .kernel = "codec::add_up<arith::GradientCodec::q4>"},
    {.file = "codec/gpu_topk.cu", .kernel = "codec::encode_topk"},
    {.file = "csd/gpu_update.cu", .kernel = "csd::update<arith::StateFormat::compact>"},
    {.file = "model/gpu_loss.cu", .kernel = "model::cross_entropies<std::uint16_t>"},
}};

// Tests a version of CUDA, whose kernels are kept in a folder of the test.
class GpuCodeTest : public testing::TestWithParam<int> {
protected:
    void SetUp() override {
        environment_.set("XDG_CACHE_HOME", root_.path());
        nvrtc_ = find_nvrtc(GetParam());
        if (nvrtc_ == nullptr || nvrtc_->major() != GetParam()) {
            GTEST_SKIP() << "there is no NVRTC of CUDA " << GetParam();
        }
    }

    const Nvrtc& nvrtc() const { return *nvrtc_; }
    std::string cache() const { return root_.file("nearstep/gpu"); }

private:
    ScratchFolder root_;
    Environment environment_;
    const Nvrtc* nvrtc_ = nullptr;
};

TEST_P(GpuCodeTest, IsMadeOfEveryKernel) {
    std::vector<int> computes = {90};
    if (std::getenv("NEARSTEP_LONG") != nullptr) {
        computes = nvrtc().computes();
        std::erase_if(computes, [](int compute) { return compute < 75; });
    }
    for (const int compute : computes) {
        for (const KernelLaunch& kernel : kKernels) {
            const GpuCode code = gpu_code(nvrtc(), kernel, compute);
            EXPECT_THAT(code.name, testing::StartsWith("_Z")) << kernel.kernel << compute;
            EXPECT_EQ(code.code.substr(1, 3), "ELF") << kernel.kernel << compute;
        }
    }
}

TEST_P(GpuCodeTest, IsMadeForOldAndNewGpus) {
    const std::vector<int> computes = nvrtc().computes();
    EXPECT_THAT(computes, testing::IsSupersetOf({75, 80, 86, 89, 90}));
    const KernelLaunch& update = kKernels.at(9);
    EXPECT_EQ(gpu_code(nvrtc(), update, 75).code.substr(1, 3), "ELF");
    EXPECT_EQ(gpu_code(nvrtc(), update, computes.back()).code.substr(1, 3), "ELF");
    // The driver compiles for a GPU that this NVRTC does not know.
    EXPECT_THAT(gpu_code(nvrtc(), kKernels.at(2), 990).code, testing::HasSubstr(".target sm_"));
}

TEST_P(GpuCodeTest, IsKeptForTheNextProcess) {
    const KernelLaunch& kernel = kKernels.at(2);
    const GpuCode code = gpu_code(nvrtc(), kernel, 90);
    std::vector<fs::path> files(fs::directory_iterator(cache()), fs::directory_iterator{});
    ASSERT_EQ(files.size(), 1U);
    const std::string path = files.front().string();
    const std::string bytes = bytes_of(path);
    EXPECT_THAT(bytes, testing::HasSubstr(code.name + "\n" + code.code));
    // A damaged file, or one that is a link, is made anew and not loaded.
    flip_bit(path, bytes.size() - 10);
    EXPECT_EQ(gpu_code(nvrtc(), kernel, 90).code, code.code);
    EXPECT_EQ(bytes_of(path), bytes);
    fs::rename(path, path + ".other");
    fs::create_symlink(path + ".other", path);
    EXPECT_EQ(gpu_code(nvrtc(), kernel, 90).code, code.code);
    EXPECT_FALSE(fs::is_symlink(path));
}

TEST_P(GpuCodeTest, IsRefusedWithTheCompilersWords) {
    GpuProgram program{
        .path = "a.cu", .source = "nonsense", .headers = {}, .kernel = "a", .compute = 90};
    EXPECT_THAT(message_of<CudaError>([&] { nvrtc().compile(program); }),
                testing::AllOf(testing::HasSubstr("a.cu"), testing::HasSubstr("nonsense")));
}

INSTANTIATE_TEST_SUITE_P(Cuda, GpuCodeTest, testing::Values(12, 13),
                         [](const auto& version) { return std::to_string(version.param); });

}  // namespace
}  // namespace nearstep::memory
