// Gradients that come in any order or as tensors give the same masters as gradients in order.
#include "engine/run_fixture.hpp"
#include "support/test.hpp"

#include <random>

namespace nearstep::engine {
namespace {

constexpr int kSteps = 3;

// The order in which the blocks' gradients come, and where they lie.
enum class Way { last_first, tensors_last_first, tensors_shuffled };

Layout five_blocks() { return layout_of_blocks({70000, 300, 131072, 65000, 4000}, Dtype::bf16); }

float value_of(std::uint64_t stream, std::uint64_t number) {
    return static_cast<float>(random_bits(17, stream, number) >> 40U) / 16777216.0F - 0.5F;
}

std::vector<float> gradient_of(shard::ElementRange block, std::uint64_t stream) {
    std::vector<float> gradient(block.size());
    for (std::size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = value_of(stream, block.begin + i);
    }
    return gradient;
}

config::EngineSettings placed_in(const std::string& folder, config::GroupWord parameters) {
    config::EngineSettings settings = settings_in(folder);
    settings.placement = {.parameters = parameters,
                          .gradients = config::GroupWord::automatic,
                          .optimizer = config::GroupWord::global};
    settings.exchange.ranks_per_node = parameters == config::GroupWord::global ? 1 : 0;
    return settings;
}

std::string folder_of(const mpi::Communicator& world, int number) {
    return new_folder(world, "gradients-" + std::to_string(number));
}

std::vector<std::size_t> order_of_blocks(Way way, std::size_t blocks, std::uint64_t stream) {
    std::vector<std::size_t> order(blocks);
    std::iota(order.rbegin(), order.rend(), std::size_t{0});
    if (way == Way::tensors_shuffled) {
        std::mt19937_64 draw(stream);
        std::shuffle(order.begin(), order.end(), draw);
    }
    return order;
}

// Hands over twice the gradient as tensors of several sizes, and half as its factor.
void put_tensors(engine::Run& engine, std::size_t block, std::vector<float>& gradient) {
    std::ranges::transform(gradient, gradient.begin(), [](float g) { return 2 * g; });
    std::vector<shard::GradientPart> parts;
    for (std::size_t at = 0, elems = 0; at < gradient.size(); at += elems) {
        elems = std::min(3 * at + 7, gradient.size() - at);
        parts.push_back({&gradient[at], Dtype::fp32, elems});
    }
    engine.put_gradient(block, {.parts = parts, .factor = 0.5F});
}

void take_step(engine::Run& engine, const Layout& layout, std::uint64_t rank, Way way,
               const std::vector<std::size_t>& skipped = {}) {
    engine.begin_forward();
    for (std::size_t block = 0; block < layout.blocks.size(); ++block) {
        engine.await_parameters(block, {&layout.blocks[block], 1}, {});
    }
    engine.end_pass();
    if (engine.is_under_way()) {
        engine.finish();
        engine.commit();
    }
    engine.begin_backward({.groups = {Hyper{}}, .skipped = skipped});
    const auto stream =
        static_cast<std::uint64_t>(engine.steps_done()) * 64 + rank;  // of each rank and step
    std::vector<std::vector<float>> tensors;  // which the engine may read until the end
    for (const std::size_t block : order_of_blocks(way, layout.blocks.size(), stream)) {
        tensors.push_back(gradient_of(layout.blocks[block], stream));
        if (way == Way::last_first) {
            std::ranges::copy(tensors.back(), engine.gradient_space(block).begin());
            engine.put_gradient(block);
        } else {
            put_tensors(engine, block, tensors.back());
        }
    }
    engine.end_pass();
    engine.end_gradients();
    engine.update();
}

std::uint64_t masters_after(const mpi::Communicator& world, const config::EngineSettings& settings,
                            Way way) {
    const Layout layout = five_blocks();
    engine::Run run =
        engine::Run::open(world, settings, layout, {.kind = StartRequest::Kind::fresh},
                          {.model = "five blocks", .steps = kSteps}, {});
    engine::Run* const engine = &run;
    run.begin(each_by([](std::size_t i) { return value_of(1000, i); }));
    for (int step = 0; step < kSteps; ++step) {
        take_step(*engine, layout, static_cast<std::uint64_t>(world.rank()), way);
    }
    engine->finish();
    engine->commit();
    return engine->masters_digest();
}

// Per block, the parameters after a step that has ended.
std::vector<std::vector<std::byte>> parameters_after_step(engine::Run& engine, const Layout& layout,
                                                          std::uint64_t rank,
                                                          const std::vector<std::size_t>& skipped) {
    take_step(engine, layout, rank, Way::last_first, skipped);
    engine.finish();
    engine.commit();
    std::vector<std::vector<std::byte>> blocks;
    const std::span<const std::byte> all = engine.parameters();
    for (const shard::ElementRange& block : layout.blocks) {
        const auto bytes = all.subspan(2 * block.begin, 2 * block.size());
        blocks.emplace_back(bytes.begin(), bytes.end());
    }
    return blocks;
}

TEST(SkippedTensorsTest, StayAsTheyAreInTheStepThatSkipsThem) {
    const auto world = mpi::Communicator::world(std::chrono::seconds(100));
    const config::EngineSettings settings =
        placed_in(folder_of(world, 2), config::GroupWord::replicated);
    const Layout layout = five_blocks();
    engine::Run run =
        engine::Run::open(world, settings, layout, {.kind = StartRequest::Kind::fresh},
                          {.model = "five blocks", .steps = kSteps}, {});
    engine::Run* const engine = &run;
    run.begin(each_by([](std::size_t i) { return value_of(1000, i); }));
    const auto rank = static_cast<std::uint64_t>(world.rank());
    const auto before = parameters_after_step(*engine, layout, rank, {});
    const auto skipped = parameters_after_step(*engine, layout, rank, {1, 3});
    const auto after = parameters_after_step(*engine, layout, rank, {});
    for (std::size_t block = 0; block < layout.blocks.size(); ++block) {
        EXPECT_EQ(skipped[block] == before[block], block == 1 || block == 3) << block;
        EXPECT_NE(after[block], skipped[block]) << block;
    }
}

// Steps that a run clips, or skips because a gradient is not finite.
struct ClipCase {
    const char* name;
    std::string clipped;  // per step: 'c' clipped, '.' not clipped, 'x' not finite
    int wrong = 0;        // wrong guesses
    int right = 0;
    std::vector<std::string> ways = {"replicated"};
};

const std::vector<std::string> kWays = {"replicated", "global", "delta", "q8", "fp16"};

struct Ended {
    std::uint64_t masters = 0;
    int right = 0;
    int wrong = 0;
    bool operator==(const Ended&) const = default;
};

void put_scaled(engine::Run& engine, const Layout& layout, std::uint64_t stream, char kind) {
    for (std::size_t block = layout.blocks.size(); block-- > 0;) {
        const std::vector<float> part = gradient_of(layout.blocks[block], stream);
        const std::span<float> space = engine.gradient_space(block);
        // A rank's norm is about 15 or 0.015.
        const float factor = (kind == 'c' ? 0.1F : 1e-4F) * static_cast<float>(engine.loss_scale());
        std::ranges::transform(part, space.begin(), [&](float g) { return factor * g; });
        if (kind == 'x' && block == 0) {
            space.front() = std::numeric_limits<float>::infinity();
        }
        engine.put_gradient(block);
    }
}

Ended clipped_run(const mpi::Communicator& world, const config::EngineSettings& settings,
                  Dtype dtype, const std::string& steps, bool puts_at_once = false) {
    Layout layout = five_blocks();
    layout.dtype = dtype;
    engine::Run run = engine::Run::open(
        world, settings, layout, {.kind = StartRequest::Kind::fresh},
        {.model = "five blocks", .steps = std::ssize(steps)}, {.puts_at_once = puts_at_once});
    engine::Run* const engine = &run;
    run.begin(each_by([](std::size_t i) { return value_of(1000, i); }));
    Ended ended;
    for (const char kind : steps) {
        if (engine->steps_done() % 3 != 1) {  // also before a step that turns out otherwise
            engine->expect_backward();
        }
        engine->begin_backward({.groups = {Hyper{}}, .clip_norm = 1});
        put_scaled(*engine, layout,
                   static_cast<std::uint64_t>(engine->steps_done() * 64 + world.rank()), kind);
        engine->end_pass();
        const GradientFacts facts = engine->end_gradients();
        ended.right += facts.guess == trace::Guess::right ? 1 : 0;
        ended.wrong += facts.guess == trace::Guess::wrong ? 1 : 0;
        engine->update();
        engine->finish();
        engine->commit();
    }
    ended.masters = engine->masters_digest();
    return ended;
}

class ClippingOf : public testing::TestWithParam<ClipCase> {};

TEST_P(ClippingOf, HasTheBitsOfAStepThatWaitsForItsNorm) {
    const auto world = mpi::Communicator::world(std::chrono::seconds(100));
    for (const std::string& way : GetParam().ways) {
        SCOPED_TRACE(way);
        config::EngineSettings settings =
            placed_in(folder_of(world, 3),
                      way == "global" ? config::GroupWord::global : config::GroupWord::replicated);
        if (way == "delta") {
            settings.gather.codec = config::ParameterCodec::delta;
        }
        if (way == "q8") {
            settings.csd.state = arith::StateFormat::q8;
        }
        const Dtype dtype = way == "fp16" ? Dtype::fp16 : Dtype::bf16;
        const Ended guessed = clipped_run(world, settings, dtype, GetParam().clipped);
        const Ended at_once = clipped_run(world, settings, dtype, GetParam().clipped, true);
        settings.mode = config::Mode::su;
        settings.csd.path = {folder_of(world, 4) + "/state"};
        const Ended waited = clipped_run(world, settings, dtype, GetParam().clipped);
        EXPECT_EQ(guessed, (Ended{waited.masters, GetParam().right, GetParam().wrong}));
        EXPECT_EQ(at_once, waited);
        EXPECT_EQ(waited.right + waited.wrong, 0);
    }
}

INSTANTIATE_TEST_SUITE_P(Steps, ClippingOf,
                         testing::Values(ClipCase{"always", "ccc"}, ClipCase{"never", "....", 0, 3},
                                         ClipCase{"in_turns", ".c.c..c", 3, 1, kWays},
                                         ClipCase{"not_finite", "..x.c.", 2, 3, {"delta", "fp16"}}),
                         [](const auto& of) { return std::string(of.param.name); });

class GradientsOf : public testing::TestWithParam<config::GroupWord> {};

TEST_P(GradientsOf, GiveTheSameMastersInAnyOrderAndAsTensors) {
    const auto world = mpi::Communicator::world(std::chrono::seconds(100));
    const std::string folder = folder_of(world, GetParam() == config::GroupWord::global ? 1 : 0);
    const config::EngineSettings settings = placed_in(folder, GetParam());
    const std::uint64_t in_order = masters_after(world, settings, Way::last_first);
    EXPECT_EQ(masters_after(world, settings, Way::tensors_last_first), in_order);
    EXPECT_EQ(masters_after(world, settings, Way::tensors_shuffled), in_order);
}

INSTANTIATE_TEST_SUITE_P(Placements, GradientsOf,
                         testing::Values(config::GroupWord::replicated, config::GroupWord::global),
                         [](const auto& of) { return std::string(config::name_of(of.param)); });

}  // namespace
}  // namespace nearstep::engine
