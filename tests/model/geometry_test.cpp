#include "model/geometry.hpp"

#include "support/test.hpp"

namespace nearstep::model {
namespace {

config::ModelSettings gpt2(int layers, int heads, int width) {
    return {.layers = layers, .heads = heads, .width = width, .context = 1024, .vocabulary = 50257};
}

config::ModelSettings tiny_settings() {
    return {.layers = 2, .heads = 2, .width = 8, .context = 6, .vocabulary = 11};
}

std::string refusal_of(const config::ModelSettings& settings) {
    return message_of([&] { describe(settings); });
}

const Parameter& find(const Geometry& geometry, const std::string& name) {
    for (const Parameter& parameter : geometry.parameters) {
        if (parameter.name == name) {
            return parameter;
        }
    }
    throw Error("no parameter " + name);
}

TEST(Geometry, HasThePublishedSizesOfGpt2) {
    EXPECT_EQ(describe(gpt2(12, 12, 768)).elems, 124'439'808U);
    EXPECT_EQ(describe(gpt2(24, 16, 1024)).elems, 354'823'168U);
    EXPECT_EQ(describe(gpt2(48, 25, 1600)).elems, 1'557'611'200U);
}

TEST(Geometry, LaysParametersAndBlocksOutWithoutGaps) {
    const Geometry geometry = describe(tiny_settings());
    std::size_t elems = 0;
    std::set<std::string> names;
    for (const Parameter& parameter : geometry.parameters) {
        EXPECT_EQ(parameter.offset, elems) << parameter.name;
        const auto product = std::accumulate(parameter.shape.begin(), parameter.shape.end(),
                                             std::int64_t{1}, std::multiplies<>());
        EXPECT_EQ(parameter.elems, static_cast<std::size_t>(product)) << parameter.name;
        EXPECT_TRUE(names.insert(parameter.name).second) << parameter.name;
        elems += parameter.elems;
    }
    EXPECT_EQ(geometry.elems, elems);

    std::size_t begin = 0;
    std::size_t first = 0;
    for (const Block& block : geometry.blocks) {
        EXPECT_EQ(block.begin, begin) << block.name;
        EXPECT_EQ(block.first_parameter, first) << block.name;
        EXPECT_EQ(geometry.parameters[block.first_parameter].offset, block.begin) << block.name;
        begin = block.end;
        first = block.last_parameter;
    }
    EXPECT_EQ(begin, geometry.elems);
    EXPECT_EQ(first, geometry.parameters.size());
}

TEST(Geometry, NamesAndShapesAreThoseOfPublishedCheckpoints) {
    const Geometry geometry = describe(tiny_settings());
    std::vector<std::string> blocks;
    for (const Block& block : geometry.blocks) {
        blocks.push_back(block.name);
    }
    EXPECT_THAT(blocks, testing::ElementsAre("embedding", "h.0", "h.1", "head"));
    EXPECT_THAT(find(geometry, "wte.weight").shape, testing::ElementsAre(11, 8));
    EXPECT_THAT(find(geometry, "wpe.weight").shape, testing::ElementsAre(6, 8));
    EXPECT_THAT(find(geometry, "h.1.attn.c_attn.weight").shape, testing::ElementsAre(8, 24));
    EXPECT_THAT(find(geometry, "h.0.mlp.c_fc.weight").shape, testing::ElementsAre(8, 32));
    EXPECT_THAT(find(geometry, "h.0.mlp.c_proj.weight").shape, testing::ElementsAre(32, 8));
    EXPECT_THAT(find(geometry, "ln_f.bias").shape, testing::ElementsAre(8));
}

TEST(Geometry, RefusesWhatCannotBeInOneSentence) {
    config::ModelSettings settings = tiny_settings();
    settings.heads = 3;
    EXPECT_EQ(refusal_of(settings),
              "model.width = 8 is not a multiple of model.heads = 3: choose heads that divide the "
              "width.");
    settings = tiny_settings();
    settings.context = 0;
    EXPECT_EQ(refusal_of(settings), "model.context is 0: set it to 1 or more.");
    settings = tiny_settings();
    settings.heads = -2;
    EXPECT_EQ(refusal_of(settings), "model.heads is -2: set it to 1 or more.");
}

TEST(StartValues, AreTheSameHoweverTheVectorIsSplit) {
    const Geometry geometry = describe(tiny_settings());
    std::vector<float> whole(geometry.elems, 7.0F);
    fill_start_values(geometry, 3, 0, whole);
    for (const std::size_t piece :
         {std::size_t{1}, std::size_t{7}, std::size_t{97}, std::size_t{1024}}) {
        std::vector<float> pieced(whole.size(), 9.0F);
        for (std::size_t begin = 0; begin < pieced.size(); begin += piece) {
            const std::size_t elems = std::min(piece, pieced.size() - begin);
            fill_start_values(geometry, 3, begin, std::span(pieced).subspan(begin, elems));
        }
        EXPECT_EQ(pieced, whole) << "pieces of " << piece;
    }

    std::vector<float> other(whole.size());
    fill_start_values(geometry, 4, 0, other);
    EXPECT_NE(other, whole);
}

TEST(StartValues, HaveTheDeviationsOfGpt2) {
    const config::ModelSettings settings{
        .layers = 2, .heads = 4, .width = 64, .context = 128, .vocabulary = 256};
    const Geometry geometry = describe(settings);
    std::vector<float> values(geometry.elems);
    fill_start_values(geometry, 1, 0, values);
    const auto deviation_of = [&](const std::string& name) {
        const Parameter& parameter = find(geometry, name);
        double squares = 0;
        for (const float value : std::span(values).subspan(parameter.offset, parameter.elems)) {
            squares += static_cast<double>(value) * value;
        }
        return std::sqrt(squares / static_cast<double>(parameter.elems));
    };
    EXPECT_NEAR(deviation_of("wte.weight"), 0.02, 0.0005);
    EXPECT_NEAR(deviation_of("wpe.weight"), 0.01, 0.0005);
    EXPECT_NEAR(deviation_of("h.1.attn.c_attn.weight"), 0.02, 0.0005);
    EXPECT_NEAR(deviation_of("h.1.mlp.c_proj.weight"), 0.01, 0.0005);  // 0.02 / sqrt(2 * 2)
    EXPECT_EQ(deviation_of("h.0.ln_1.weight"), 1.0);
    EXPECT_EQ(deviation_of("h.0.mlp.c_fc.bias"), 0.0);
}

}  // namespace
}  // namespace nearstep::model
