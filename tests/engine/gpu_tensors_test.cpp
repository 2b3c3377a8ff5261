// Gradients in GPU memory give the same masters in any order as the same gradients on the host.
#include "engine/run_fixture.hpp"
#include "memory/gpu.hpp"
#include "support/test.hpp"

namespace nearstep::engine {
namespace {

constexpr int kGpuSteps = 3;

Layout three_blocks() { return layout_of_blocks({70000, 301, 131072}, Dtype::bf16); }

std::vector<float> gradient_of(shard::ElementRange block, std::int64_t step) {
    std::vector<float> gradient(block.size());
    for (std::size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] =
            static_cast<float>(random_normal(static_cast<std::uint64_t>(step), 0, block.begin + i));
    }
    return gradient;
}

// Puts the gradients of all blocks, and ends them.
void put_tensors(engine::Run& engine, const Layout& layout, const std::vector<std::size_t>& order) {
    const memory::Stream stream = memory::Stream::of_default();
    std::vector<std::vector<float>> on_host;
    std::vector<memory::GpuBuffer> on_gpu;
    for (const std::size_t block : order) {
        on_host.push_back(gradient_of(layout.blocks[block], engine.steps_done()));
        const void* values = on_host.back().data();
        if (engine.facts().encodes_on_gpu) {
            const auto bytes = std::as_bytes(std::span(on_host.back()));
            copy_to_gpu(on_gpu.emplace_back(bytes.size()).span(), bytes, stream);
            values = on_gpu.back().as<float>();
        }
        const shard::GradientPart part{values, Dtype::fp32, layout.blocks[block].size()};
        engine.put_gradient(block, {.parts = {&part, 1}});
    }
    engine.end_pass();
    engine.end_gradients();
}

std::uint64_t masters_of(const mpi::Communicator& world, std::optional<int> gpu,
                         const std::vector<std::size_t>& order) {
    config::EngineSettings settings = settings_in(new_folder(world, "gpu-tensors"));
    settings.compress.codec = config::PayloadCodec::q8;
    const Layout layout = three_blocks();
    Run run = Run::open(world, settings, layout, {.kind = StartRequest::Kind::fresh},
                        {.model = "m", .steps = kGpuSteps}, {.gpu = gpu});
    engine::Run* const engine = &run;
    EXPECT_EQ(engine->facts().encodes_on_gpu, gpu.has_value());
    run.begin(each_by([](std::size_t) { return 0.25F; }));
    for (int step = 0; step < kGpuSteps; ++step) {
        engine->begin_backward({.groups = {Hyper{}}});
        put_tensors(*engine, layout, order);
        engine->update();
        engine->finish();
        engine->commit();
    }
    return engine->masters_digest();
}

TEST(GpuTensors, GiveTheMastersOfTheHostInAnyOrder) {
    if (memory::gpus() == 0) {
        GTEST_SKIP() << "there is no GPU here";
    }
    const auto world = mpi::Communicator::world(std::chrono::seconds(100));
    const std::uint64_t on_host = masters_of(world, std::nullopt, {2, 1, 0});
    EXPECT_EQ(masters_of(world, 0, {2, 1, 0}), on_host);
    EXPECT_EQ(masters_of(world, 0, {0, 2, 1}), on_host);
}

}  // namespace
}  // namespace nearstep::engine
