// Micro-batches' gradients in GPU memory give the same masters as the same gradients on the host.
#include "engine/run_fixture.hpp"
#include "memory/gpu.hpp"
#include "support/test.hpp"

namespace nearstep::engine {
namespace {

constexpr int kGpuSteps = 3;
constexpr int kParts = 3;

Layout three_blocks() { return layout_of_blocks({70000, 301, 131072}, Dtype::bf16); }

void put_parts(engine::Run& engine, const Layout& layout, std::size_t block) {
    const memory::Stream stream = memory::Stream::of_default();
    for (int part = 0; part < kParts; ++part) {
        std::vector<float> gradient(layout.blocks[block].size());
        for (std::size_t i = 0; i < gradient.size(); ++i) {
            gradient[i] = static_cast<float>(
                random_normal(static_cast<std::uint64_t>(engine.steps_done()),
                              static_cast<std::uint64_t>(part), layout.blocks[block].begin + i));
        }
        if (!engine.facts().encodes_on_gpu) {
            engine.add_gradient(block, gradient);
            continue;
        }
        memory::GpuBuffer on_gpu(gradient.size() * sizeof(float));
        copy_to_gpu(on_gpu.span(), std::as_bytes(std::span(gradient)), stream);
        engine.add_gradient(block, {on_gpu.as<float>(), gradient.size()});
        stream.wait();  // before the memory is freed
    }
    engine.put_gradient(block);
}

std::uint64_t masters_of_parts(const mpi::Communicator& world, std::optional<int> gpu,
                               const std::vector<std::size_t>& order) {
    config::EngineSettings settings = settings_in(new_folder(world, "gpu-parts"));
    settings.compress.codec = config::PayloadCodec::q8;
    const Layout layout = three_blocks();
    Run run =
        Run::open(world, settings, layout, {.kind = StartRequest::Kind::fresh},
                  {.model = "m", .steps = kGpuSteps}, {.gpu = gpu, .puts_in_any_order = true});
    engine::Run* const engine = &run;
    EXPECT_EQ(engine->facts().encodes_on_gpu, gpu.has_value());
    run.begin(each_by([](std::size_t) { return 0.25F; }));
    for (int step = 0; step < kGpuSteps; ++step) {
        engine->begin_backward({.groups = {Hyper{}}});
        for (const std::size_t block : order) {
            put_parts(*engine, layout, block);
        }
        engine->end_pass();
        engine->end_gradients();
        engine->update();
        engine->finish();
        engine->commit();
    }
    return engine->masters_digest();
}

TEST(GpuParts, GiveTheMastersOfTheHostInAnyOrder) {
    if (memory::gpus() == 0) {
        GTEST_SKIP() << "there is no GPU here";
    }
    const auto world = mpi::Communicator::world(std::chrono::seconds(100));
    const std::uint64_t on_host = masters_of_parts(world, std::nullopt, {2, 1, 0});
    EXPECT_EQ(masters_of_parts(world, 0, {2, 1, 0}), on_host);
    EXPECT_EQ(masters_of_parts(world, 0, {0, 2, 1}), on_host);
}

}  // namespace
}  // namespace nearstep::engine
