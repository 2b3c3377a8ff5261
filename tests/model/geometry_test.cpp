// Tests sizes, layouts and start values of networks.
#include "model/geometry.hpp"

#include "model/network_steps.hpp"
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

config::ModelSettings llama(int layers, int heads, int kv_heads, int width, int hidden,
                            int vocabulary) {
    return {.architecture = config::ModelFamily::llama,
            .layers = layers,
            .heads = heads,
            .kv_heads = kv_heads,
            .width = width,
            .hidden = hidden,
            .vocabulary = vocabulary,
            .tied = false};
}

TEST(Geometry, HasThePublishedSizes) {
    EXPECT_EQ(describe(gpt2(12, 12, 768)).elems, 124'439'808U);
    EXPECT_EQ(describe(gpt2(24, 16, 1024)).elems, 354'823'168U);
    EXPECT_EQ(describe(gpt2(48, 25, 1600)).elems, 1'557'611'200U);
    EXPECT_EQ(describe(llama(32, 32, 0, 4096, 0, 32000)).elems, 6'738'415'616U) << "Llama 2 7B";
    EXPECT_EQ(describe(llama(32, 32, 8, 4096, 14336, 128256)).elems, 8'030'261'248U) << "Llama 3";
    config::ModelSettings qwen = llama(24, 14, 2, 896, 4864, 151936);
    qwen.qkv_bias = true;
    qwen.tied = true;
    EXPECT_EQ(describe(qwen).elems, 494'032'768U) << "Qwen2 0.5B";
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
    struct Published {
        config::ModelSettings settings;
        std::vector<std::string> blocks;
        std::map<std::string, std::vector<std::int64_t>> shapes;
    };
    const Published gpt{tiny_settings(),
                        {"embedding", "h.0", "h.1", "head"},
                        {{"wte.weight", {11, 8}},
                         {"wpe.weight", {6, 8}},
                         {"h.1.attn.c_attn.weight", {8, 24}},
                         {"h.0.mlp.c_fc.weight", {8, 32}},
                         {"h.0.mlp.c_proj.weight", {32, 8}},
                         {"ln_f.bias", {8}}}};
    const Published llama{tiny_llama(),
                          {"embedding", "layers.0", "layers.1", "head"},
                          {{"model.embed_tokens.weight", {23, 16}},
                           {"model.layers.1.self_attn.q_proj.weight", {16, 16}},
                           {"model.layers.1.self_attn.k_proj.weight", {8, 16}},
                           {"model.layers.0.self_attn.v_proj.bias", {8}},
                           {"model.layers.0.mlp.up_proj.weight", {24, 16}},
                           {"model.layers.0.mlp.down_proj.weight", {16, 24}},
                           {"model.norm.weight", {16}},
                           {"lm_head.weight", {23, 16}}}};
    for (const Published& one : {gpt, llama}) {
        const Geometry geometry = describe(one.settings);
        std::vector<std::string> blocks;
        std::ranges::transform(geometry.blocks, std::back_inserter(blocks), &Block::name);
        EXPECT_EQ(blocks, one.blocks);
        for (const auto& [name, shape] : one.shapes) {
            EXPECT_EQ(find(geometry, name).shape, shape) << name;
        }
    }
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
