// Tests which blocks and activations stay on a GPU.
#include "model/gpu_plan.hpp"

#include "model/geometry.hpp"
#include "support/test.hpp"

namespace nearstep::model {
namespace {

constexpr std::size_t kGiga = 1'000'000'000;

config::ModelSettings gpt_7b() {
    return {.layers = 32, .heads = 32, .width = 4096, .context = 2048, .vocabulary = 50257};
}

constexpr GpuWork kWork{.rows = 8, .micro_rows = 1};

TEST(GpuPlan, KeepsEverythingOnAGpuThatHasRoom) {
    const config::ModelSettings settings = gpt_7b();
    const GpuPlan plan = plan_gpu(settings, kWork, 140 * kGiga);
    const std::size_t bytes = describe(settings).elems * 2;
    EXPECT_EQ(plan.residence.slots, 0);
    EXPECT_FALSE(plan.residence.are_inputs_on_host);
    EXPECT_EQ(plan.parameter_bytes, bytes);
    EXPECT_EQ(plan.link_bytes, bytes) << "each block comes once a step";
    EXPECT_EQ(plan.host_bytes, 0U);
    EXPECT_EQ(plan.gradient_bytes, (50257U + 2048U) * 4096U * 4U) << "of the first block";
}

TEST(GpuPlan, CountsThePartThatComesOverTheLink) {
    const config::ModelSettings settings = gpt_7b();
    GpuWork work = kWork;
    work.joint_ranks = 8;
    for (const std::size_t budget : {140 * kGiga, 10 * kGiga}) {
        const GpuPlan alone = plan_gpu(settings, kWork, budget);
        const GpuPlan joint = plan_gpu(settings, work, budget);
        const auto inputs = [](const GpuPlan& plan) { return 2 * plan.host_bytes; };
        ASSERT_EQ(inputs(joint), inputs(alone)) << "the same plan";
        const std::size_t whole = alone.link_bytes - inputs(alone);
        const std::size_t part = joint.link_bytes - inputs(joint);
        EXPECT_GE(8 * part, whole);
        EXPECT_LT(8 * part, whole + std::size_t{200} * 8 * 512) << "of each block rounded up";
    }
}

TEST(GpuPlan, StreamsAModelThatDoesNotFit) {
    const GpuPlan plan = plan_gpu(gpt_7b(), kWork, 10 * kGiga);
    EXPECT_GE(plan.residence.slots, 2);
    EXPECT_LT(plan.residence.slots, 34);
    EXPECT_EQ(plan.parameter_bytes,
              static_cast<std::size_t>(plan.residence.slots) * (50257 + 2048) * 4096 * 2);
    EXPECT_GT(plan.link_bytes, plan_gpu(gpt_7b(), kWork, 140 * kGiga).link_bytes);
    EXPECT_THAT(describe(plan), testing::HasSubstr("slots that 34 blocks stream through"));
}

TEST(GpuPlan, TakesWhatMovesTheFewestBytes) {
    // A smaller budget never moves fewer bytes. model.activations overrides where inputs wait.
    config::ModelSettings settings = gpt_7b();
    std::size_t before = 0;
    for (std::size_t budget = 100; budget >= 6; --budget) {
        const GpuPlan plan = plan_gpu(settings, kWork, budget * kGiga);
        EXPECT_LE(plan.total_bytes(), budget * kGiga);
        EXPECT_GE(plan.link_bytes, before) << "less room never moves less";
        before = plan.link_bytes;
    }
    settings.activations = config::Activations::host;
    const GpuPlan host = plan_gpu(settings, kWork, 140 * kGiga);
    EXPECT_TRUE(host.residence.are_inputs_on_host);
    EXPECT_EQ(host.host_bytes, std::size_t{32} * 8 * 2048 * 4096 * 2);
    settings.activations = config::Activations::gpu;
    EXPECT_FALSE(plan_gpu(settings, kWork, 12 * kGiga).residence.are_inputs_on_host);
}

TEST(GpuPlan, KeepsWhatBackwardNeedsOfAsManyBlocksAsFit) {
    config::ModelSettings settings = gpt_7b();
    const std::size_t tokens = 8 * 2048;
    int before = 0;
    for (std::size_t budget = 20; budget <= 140; budget += 10) {
        const GpuPlan plan = plan_gpu(settings, kWork, budget * kGiga);
        EXPECT_LE(plan.total_bytes(), budget * kGiga);
        EXPECT_GE(plan.residence.kept_blocks, before);
        before = plan.residence.kept_blocks;
        const auto blocks = static_cast<std::size_t>(before);
        EXPECT_GE(plan.kept_bytes, blocks * tokens * 8 * 4096 * 2) << "at least half of 16 units";
        if (plan.residence.slots > 0) {
            EXPECT_EQ(before, 0) << "a slot is used again before backward";
        }
    }
    EXPECT_EQ(before, 32) << "all layers, neither embedding nor head";
    settings.activations = config::Activations::gpu;
    EXPECT_EQ(plan_gpu(settings, kWork, 140 * kGiga).residence.kept_blocks, 0);
    settings.activations = config::Activations::all;
    EXPECT_EQ(plan_gpu(settings, kWork, 140 * kGiga).residence.kept_blocks, 32);
    EXPECT_THROW(plan_gpu(settings, kWork, 20 * kGiga), ConfigError);
    EXPECT_EQ(plan_cpu(settings, kWork, 0).kept_blocks, 32);
    settings.activations = config::Activations::automatic;
    EXPECT_EQ(plan_cpu(settings, kWork, 0).kept_blocks, 0);
    EXPECT_EQ(plan_cpu(settings, kWork, 1000 * kGiga).kept_blocks, 32);
}

TEST(GpuPlan, StreamsThroughFewSlotsWhereThatIsAsked) {
    const GpuPlan plan =
        plan_gpu(gpt_7b(), {.rows = 8, .micro_rows = 1, .is_streamed = true}, 140 * kGiga);
    EXPECT_EQ(plan.residence.slots, 3);
}

TEST(GpuPlan, CountsBuffersOfGradientsBesideTheNetwork) {
    const GpuPlan plan =
        plan_gpu(gpt_7b(), {.rows = 8, .micro_rows = 1, .gradient_bytes = 5 * kGiga}, 140 * kGiga);
    EXPECT_EQ(plan.gradient_bytes, 5 * kGiga);
}

TEST(GpuPlan, KnowsLlamasAndLargeVocabularies) {
    config::ModelSettings llama{
        .architecture = config::ModelFamily::llama, .layers = 32, .heads = 32, .width = 4096};
    llama.kv_heads = 8;
    llama.hidden = 14336;
    llama.context = 4096;
    llama.vocabulary = 151936;
    llama.tied = false;
    const GpuPlan plan = plan_gpu(llama, kWork, 140 * kGiga);
    EXPECT_EQ(plan.parameter_bytes, describe(llama).elems * 2);
    const std::size_t table = std::size_t{151936} * 4096;
    EXPECT_EQ(plan.gradient_bytes, (table + 4096) * sizeof(float)) << "of the head";
    // The head: its weights' gradients in 16 and 32 bits, and logits.
    EXPECT_GT(plan.workspace_bytes, table * 6 + static_cast<std::size_t>(kMostLogits) * 2);
    // Logits exist for a part of the tokens, so more of them hardly need more memory.
    const GpuPlan more = plan_gpu(llama, {.rows = 8, .micro_rows = 2}, 140 * kGiga);
    EXPECT_LT(more.workspace_bytes, plan.workspace_bytes + kGiga);
    llama.tied = true;
    EXPECT_EQ(plan_gpu(llama, kWork, 140 * kGiga).parameter_bytes,
              plan.parameter_bytes - table * 2);
}

TEST(GpuPlan, SaysWhatToSetWhereTwoSlotsDoNotFit) {
    config::ModelSettings settings = gpt_7b();
    settings.gpu_memory_gb = 3;
    const auto refusal = [&] { return message_of([&] { plan_gpu(settings, kWork, 3 * kGiga); }); };
    const std::string sentence = refusal();
    EXPECT_THAT(sentence, testing::HasSubstr("set model.gpu_memory_gb to "));
    EXPECT_THAT(sentence, testing::HasSubstr("train.micro_batch"));
    // The suggested size is enough, and hardly more than needed.
    const std::size_t at = sentence.find("gpu_memory_gb to ") + 17;
    const double enough = std::stod(sentence.substr(at));
    EXPECT_NO_THROW(plan_gpu(settings, kWork, static_cast<std::size_t>(enough * 1e9)));
    EXPECT_THROW(plan_gpu(settings, kWork, static_cast<std::size_t>((enough - 0.2) * 1e9)),
                 ConfigError);
    settings.gpu_memory_gb = 0;
    EXPECT_THAT(refusal(), testing::Not(testing::HasSubstr("gpu_memory_gb")));
}

TEST(GpuPlan, StaysWithinAnyBudgetOrRefusesIt) {
    std::uint64_t drawn = 0;
    const auto draw = [&drawn](int least, int most) {
        return least + static_cast<int>(random_uniform(8, 1, drawn++) * (most - least + 1));
    };
    int plans = 0;
    for (int round = 0; round < 500; ++round) {
        config::ModelSettings settings{.layers = draw(1, 12),
                                       .heads = 1,
                                       .width = draw(8, 2048),
                                       .context = draw(1, 1024),
                                       .vocabulary = draw(256, 60000)};
        settings.dtype = draw(0, 1) == 0 ? Dtype::bf16 : Dtype::fp32;
        const GpuWork work{.rows = draw(1, 64), .micro_rows = draw(1, 8)};
        const auto budget = static_cast<std::size_t>(draw(1, 1 << 20)) * 16384;
        try {
            const GpuPlan plan = plan_gpu(settings, work, budget);
            EXPECT_LE(plan.total_bytes(), budget);
            EXPECT_EQ(plan.budget_bytes, budget);
            ++plans;
        } catch (const ConfigError&) {
            EXPECT_GT(plan_gpu(settings, work, 1000 * kGiga).total_bytes(), budget);
        }
    }
    EXPECT_GT(plans, 100);
}

}  // namespace
}  // namespace nearstep::model
