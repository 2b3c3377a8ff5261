// Compares the network on a GPU with the same network on the CPU; skipped without a GPU.
#include "memory/gpu.hpp"
#include "model/geometry.hpp"
#include "model/gpu_memory.hpp"
#include "model/network.hpp"
#include "support/test.hpp"

namespace nearstep::model {
namespace {

struct GpuStep {
    double loss = 0;
    double evaluated = 0;
    std::vector<float> gradient;
    std::vector<std::int32_t> sampled;
};

class GpuNetwork : public testing::Test {
protected:
    void SetUp() override {
        if (!choose_device(config::Processor::automatic, 0).is_gpu()) {
            GTEST_SKIP() << "PyTorch finds no GPU here";
        }
        settings_.layers = 2;
        settings_.heads = 2;
        settings_.width = 64;
        settings_.context = 32;
        settings_.vocabulary = 259;  // not a multiple of 8, so the GPU adds columns
        set_dtype(Dtype::fp32);
        for (std::uint64_t i = 0; i < 64; ++i) {
            tokens_.push_back(static_cast<std::int32_t>(random_uniform(5, 1, i) * 256));
            targets_.push_back(static_cast<std::int32_t>(random_uniform(5, 2, i) * 256));
        }
    }

    void set_dtype(Dtype dtype) {
        settings_.dtype = dtype;
        std::vector<float> values(describe(settings_).elems);
        fill_start_values(describe(settings_), 5, 0, values);
        parameters_.resize(values.size() * size_bytes(dtype));
        convert_from_fp32(values.data(), dtype, parameters_.data(), values.size());
    }

    // Runs a step of two micro-batches of one row each, with a loss scale.
    GpuStep run(const ComputeDevice& device, GradientPlace place = GradientPlace::host,
                const Residence& residence = {}) const {
        const auto network = Network::make(settings_, parameters_, device, residence);
        const std::span<const std::int32_t> tokens = tokens_;
        const std::span<const std::int32_t> targets = targets_;
        const std::size_t half = tokens.size() / 2;
        const int columns = settings_.context;
        const std::vector<MicroBatch> batches = {
            {1, columns, tokens.first(half), targets.first(half)},
            {1, columns, tokens.last(half), targets.last(half)},
        };
        GpuStep step;
        step.evaluated = network->evaluate(batches[0]);
        network->begin(batches, 1.0 / static_cast<double>(tokens.size()), 8);
        const int blocks = static_cast<int>(network->geometry().blocks.size());
        for (int block = 0; block < blocks; ++block) {
            network->fetch(block);
        }
        for (int block = 0; block < blocks; ++block) {
            network->forward(block);
        }
        step.loss = network->loss();
        step.gradient.resize(network->geometry().elems);
        for (int block = blocks - 1; block >= 0; --block) {
            const Block& range = network->geometry().blocks[static_cast<std::size_t>(block)];
            const auto gradient =
                std::span(step.gradient).subspan(range.begin, range.end - range.begin);
            if (place == GradientPlace::host) {
                network->backward(block, gradient);
            } else {
                memory::GpuBuffer there(gradient.size_bytes());
                network->backward(block, {there.as<float>(), gradient.size()}, place);
                copy_to_host(std::as_writable_bytes(gradient), there.span(),
                             memory::Stream::of_default());
                memory::wait_for_gpu();
            }
        }
        step.sampled = network->sample(tokens.first(8), 4, 0.8, 1);
        return step;
    }

    void make_llama() {
        settings_.architecture = config::ModelFamily::llama;
        settings_.kv_heads = 1;
        settings_.tied = false;
        settings_.qkv_bias = true;
        set_dtype(settings_.dtype);
    }

    void expect_the_cpus_results() const {
        const GpuStep cpu = run({});
        const GpuStep gpu = run({.gpu = 0});
        EXPECT_NEAR(gpu.loss, cpu.loss, 1e-5 * cpu.loss);
        EXPECT_NEAR(gpu.evaluated, cpu.evaluated, 1e-5 * cpu.evaluated);
        double difference = 0;
        double norm = 0;
        for (std::size_t i = 0; i < cpu.gradient.size(); ++i) {
            difference += std::pow(static_cast<double>(gpu.gradient[i]) - cpu.gradient[i], 2);
            norm += std::pow(static_cast<double>(cpu.gradient[i]), 2);
        }
        EXPECT_LT(std::sqrt(difference / norm), 1e-4);
        EXPECT_EQ(gpu.sampled.size(), 4U);
    }

    config::ModelSettings settings_;
    std::vector<std::byte> parameters_;
    std::vector<std::int32_t> tokens_;
    std::vector<std::int32_t> targets_;
};

TEST_F(GpuNetwork, EqualsTheCpuInFp32) {
    expect_the_cpus_results();
    make_llama();
    expect_the_cpus_results();
}

TEST_F(GpuNetwork, RepeatsBitForBitInEveryFormat) {
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
        set_dtype(dtype);
        const GpuStep first = run({.gpu = 0});
        const GpuStep second = run({.gpu = 0});
        EXPECT_EQ(first.loss, second.loss);
        EXPECT_EQ(first.gradient, second.gradient);
    }
}

TEST_F(GpuNetwork, LeavesTheSameGradientInTheMemoryOfTheGpu) {
    if (memory::gpus() == 0) {
        GTEST_SKIP() << "this program was built without CUDA";
    }
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
        set_dtype(dtype);
        EXPECT_EQ(run({.gpu = 0}, GradientPlace::gpu).gradient, run({.gpu = 0}).gradient);
    }
}

TEST_F(GpuNetwork, HasTheSameBitsWhereverBlocksAndTheirInputsAre) {
    settings_.layers = 6;
    for (const char* network : {"gpt in fp32", "gpt in bf16", "llama in bf16"}) {
        SCOPED_TRACE(network);
        set_dtype(std::string_view(network).ends_with("fp32") ? Dtype::fp32 : Dtype::bf16);
        if (std::string_view(network).starts_with("llama")) {
            make_llama();
        }
        const GpuStep resident = run({.gpu = 0});
        for (const Residence residence :
             {Residence{.slots = 2}, Residence{.slots = 3}, Residence{.slots = 5},
              Residence{.are_inputs_on_host = true}, Residence{.kept_blocks = 1},
              Residence{.kept_blocks = 6}, Residence{.slots = 2, .are_inputs_on_host = true}}) {
            for (int repeat = 0; repeat < 3; ++repeat) {
                const GpuStep step = run({.gpu = 0}, GradientPlace::host, residence);
                EXPECT_EQ(step.loss, resident.loss);
                EXPECT_EQ(step.evaluated, resident.evaluated);
                EXPECT_EQ(step.gradient, resident.gradient);
                EXPECT_EQ(step.sampled, resident.sampled);
            }
        }
    }
}

// Blocks in pinned memory whose copies take longer than their computation, over many steps.
TEST_F(GpuNetwork, StreamsManyStepsBehindASlowLink) {
    if (memory::gpus() == 0) {
        GTEST_SKIP() << "this program was built without CUDA";
    }
    settings_.layers = 8;
    settings_.width = 1024;
    settings_.heads = 16;
    set_dtype(Dtype::bf16);
    const memory::PinnedRange pinned(parameters_);
    const GpuStep resident = run({.gpu = 0});
    for (int repeat = 0; repeat < 5; ++repeat) {
        const GpuStep step =
            run({.gpu = 0}, GradientPlace::gpu, {.slots = 2, .are_inputs_on_host = true});
        EXPECT_EQ(step.loss, resident.loss);
        EXPECT_EQ(step.gradient, resident.gradient);
    }
}

// With these sizes attention's backward splits its sums.
TEST_F(GpuNetwork, RepeatsAttentionBitForBit) {
    settings_.layers = 2;
    settings_.heads = 4;
    settings_.width = 256;
    settings_.context = 1024;
    tokens_.clear();
    targets_.clear();
    for (std::uint64_t i = 0; i < 2048; ++i) {
        tokens_.push_back(static_cast<std::int32_t>(random_uniform(5, 3, i) * 256));
        targets_.push_back(static_cast<std::int32_t>(random_uniform(5, 4, i) * 256));
    }
    for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32}) {
        set_dtype(dtype);
        const GpuStep first = run({.gpu = 0});
        for (int repeat = 0; repeat < 4; ++repeat) {
            EXPECT_EQ(run({.gpu = 0}).gradient, first.gradient) << name_of(dtype);
        }
    }
}

TEST_F(GpuNetwork, TakesWhatIsCountedAndNoMoreThanItMay) {
    run({.gpu = 0});
    const ComputeDevice device{.gpu = 0};
    const GpuMemoryUse use = gpu_memory_use(device);
    EXPECT_GT(use.most_allocated_bytes, parameters_.size());
    EXPECT_GE(use.most_reserved_bytes, use.most_allocated_bytes);
    if (memory::gpus() == 0) {
        GTEST_SKIP() << "this program was built without CUDA";
    }
    begin_gpu_memory_use(device);
    limit_gpu_memory(device, std::size_t{1} << 20);
    EXPECT_ANY_THROW(run(device));
    limit_gpu_memory(device, memory::room_of_gpu().total_bytes);
    EXPECT_NO_THROW(run(device));
}

}  // namespace
}  // namespace nearstep::model
