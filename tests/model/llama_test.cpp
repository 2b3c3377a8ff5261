// Compares a Llama that goes block by block with its whole graph.
#include "model/architecture.hpp"
#include "model/network_reference.hpp"
#include "model/network_steps.hpp"
#include "support/test.hpp"

#include <ATen/ATen.h>

namespace nearstep::model {
namespace {

// Rotates pairs as complex numbers, and computes each attention head alone.
class LlamaReference final : public Reference {
public:
    using Reference::Reference;

private:
    at::Tensor norm(const at::Tensor& x, const std::string& name) const {
        const at::Tensor squares = (x * x).mean(-1, true);
        return x / (squares + settings().norm_epsilon).sqrt() * get(name + ".weight");
    }

    at::Tensor project(const at::Tensor& x, const std::string& name, bool has_bias = false) const {
        const at::Tensor y = at::matmul(x, get(name + ".weight").t());
        return has_bias ? y + get(name + ".bias") : y;
    }

    // One head's vectors [rows, columns, elems], turned by position times frequency.
    at::Tensor rotate(const at::Tensor& x) const {
        const std::int64_t pairs = x.size(2) / 2;
        const at::Tensor number = at::complex(x.narrow(2, 0, pairs), x.narrow(2, pairs, pairs));
        const at::Tensor powers = at::arange(pairs, at::kDouble) / static_cast<double>(pairs);
        const at::Tensor angles =
            at::outer(at::arange(x.size(1), at::kDouble), at::pow(settings().rope_theta, -powers));
        const at::Tensor turned = number * at::polar(at::ones_like(angles), angles);
        return at::cat({at::real(turned), at::imag(turned)}, 2).to(at::kFloat);
    }

    at::Tensor attention(const at::Tensor& x, const std::string& name) const {
        const std::int64_t elems = settings().width / settings().heads;
        const at::Tensor queries = project(x, name + ".q_proj", settings().qkv_bias);
        const at::Tensor keys = project(x, name + ".k_proj", settings().qkv_bias);
        const at::Tensor values = project(x, name + ".v_proj", settings().qkv_bias);
        const at::Tensor mask = at::ones({x.size(1), x.size(1)}, at::kBool).triu(1);
        std::vector<at::Tensor> heads;
        for (std::int64_t head = 0; head < settings().heads; ++head) {
            const std::int64_t shared = head * settings().key_heads() / settings().heads;
            const at::Tensor scores =
                at::matmul(rotate(queries.narrow(2, head * elems, elems)),
                           rotate(keys.narrow(2, shared * elems, elems)).transpose(1, 2)) /
                std::sqrt(static_cast<double>(elems));
            heads.push_back(at::matmul(at::softmax(scores.masked_fill(mask, -INFINITY), -1),
                                       values.narrow(2, shared * elems, elems)));
        }
        return project(at::cat(heads, 2), name + ".o_proj");
    }

    at::Tensor hidden(const at::Tensor& x, const std::string& name) const {
        const at::Tensor gate = project(x, name + ".gate_proj");
        return project(gate * at::sigmoid(gate) * project(x, name + ".up_proj"),
                       name + ".down_proj");
    }

    at::Tensor logits(const Rows& part) const override {
        at::Tensor x =
            at::matmul(at::one_hot(tensor(part.tokens, part), settings().vocabulary).to(at::kFloat),
                       get("model.embed_tokens.weight"));
        for (int layer = 0; layer < settings().layers; ++layer) {
            const std::string name = text("model.layers.", layer);
            x = x + attention(norm(x, name + ".input_layernorm"), name + ".self_attn");
            x = x + hidden(norm(x, name + ".post_attention_layernorm"), name + ".mlp");
        }
        return project(norm(x, "model.norm"), settings().tied ? "model.embed_tokens" : "lm_head");
    }
};

TEST(Llama, EqualsTheWholeGraphInLossAndEveryGradient) {
    config::ModelSettings settings = tiny_llama();
    expect_whole_graph<LlamaReference>(settings);
    settings.qkv_bias = false;
    settings.tied = true;
    settings.kv_heads = 1;
    settings.rope_theta = 100;
    settings.norm_epsilon = 1e-2;
    expect_whole_graph<LlamaReference>(settings);
    settings.kv_heads = 0;
    expect_whole_graph<LlamaReference>(settings);
}

std::string refusal(const config::ModelSettings& settings) {
    return message_of([&] { describe(settings); });
}

TEST(Llama, RefusesHeadsThatDoNotFit) {
    config::ModelSettings settings = tiny_llama();
    settings.kv_heads = 3;
    EXPECT_EQ(refusal(settings),
              "model.heads = 4 is not a multiple of model.kv_heads = 3: choose heads of keys and "
              "values that divide the heads.");
    settings.kv_heads = 8;
    EXPECT_THAT(refusal(settings), testing::HasSubstr("model.kv_heads = 8"));
    settings.heads = 16;
    EXPECT_THAT(refusal(settings), testing::HasSubstr("cannot pair"));
    settings = tiny();
    settings.kv_heads = 1;
    EXPECT_EQ(refusal(settings),
              "model.kv_heads = 1 is for model.architecture = \"llama\", not for \"gpt\": leave it "
              "out.");
}

TEST(Llama, IsDescribedInOneLine) {
    EXPECT_EQ(describe_model(tiny()), "gpt layers=2 heads=2 width=16 context=8 vocabulary=23");
    config::ModelSettings settings = tiny_llama();
    settings.rope_scaling = "{\"factor\": 2,\n \"rope_type\": \"linear\", \"type\": null}";
    EXPECT_EQ(describe_model(settings),
              "llama layers=2 heads=4 width=16 context=8 vocabulary=23 kv_heads=2 hidden=24 "
              "tied=false qkv_bias=true rope_scaling={\"factor\":2,\"rope_type\":\"linear\"}");
}

}  // namespace
}  // namespace nearstep::model
