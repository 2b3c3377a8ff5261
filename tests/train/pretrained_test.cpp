// Tests which tensors of a published model may be left over.
#include "train/pretrained.hpp"

#include "support/test.hpp"

#include <nlohmann/json.hpp>

namespace nearstep::train {
namespace {

struct Stored {
    std::string name;
    std::vector<std::int64_t> shape;
    std::vector<float> values;
};

class PretrainedTest : public testing::Test {
protected:
    explicit PretrainedTest(config::ModelFamily architecture = config::ModelFamily::gpt) {
        settings_ = {.architecture = architecture,
                     .layers = 1,
                     .heads = 2,
                     .width = 4,
                     .hidden = 6,
                     .context = 8,
                     .vocabulary = 256};
    }

    // A whole model, each tensor with values of its own.
    std::vector<Stored> whole(const std::string& prefix = "") const {
        std::vector<Stored> tensors;
        for (const model::Parameter& parameter : model::describe(settings_).parameters) {
            std::vector<float> values(parameter.elems);
            std::iota(values.begin(), values.end(), static_cast<float>(parameter.offset));
            tensors.push_back({prefix + parameter.name, parameter.shape, values});
        }
        return tensors;
    }

    std::string write(const std::vector<Stored>& tensors) const {
        nlohmann::ordered_json header;
        std::string data;
        for (const Stored& tensor : tensors) {
            const std::size_t begin = data.size();
            data.resize(begin + tensor.values.size() * sizeof(float));
            std::memcpy(data.data() + begin, tensor.values.data(), data.size() - begin);
            header[tensor.name] = {
                {"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
        }
        const std::string words = header.dump();
        std::string size(sizeof(std::uint64_t), '\0');
        const std::uint64_t bytes = words.size();
        std::memcpy(size.data(), &bytes, sizeof bytes);
        return folder_.write("model.safetensors", size + words + data);
    }

    // Empty if the file is taken.
    std::string refusal(const std::vector<Stored>& tensors) const {
        const std::string path = write(tensors);
        try {
            const Pretrained pretrained(path, model::describe(settings_));
        } catch (const ConfigError& error) {
            return error.what();
        }
        return "";
    }

    std::string refusal_of_more(const Stored& more, const std::string& prefix = "") const {
        std::vector<Stored> tensors = whole(prefix);
        tensors.push_back(more);
        return refusal(tensors);
    }

    config::ModelSettings settings_;
    ScratchFolder folder_;
};

TEST_F(PretrainedTest, TakesAWholeModelWithOrWithoutItsPrefix) {
    EXPECT_EQ(refusal(whole()), "");
    EXPECT_EQ(refusal(whole("transformer.")), "");
}

TEST_F(PretrainedTest, NamesWhatIsLeftOver) {
    for (const std::string prefix : {"", "transformer."}) {
        for (const std::string name :
             {"h.1.attn.c_attn.weight", "h.0.attn.q_proj.bias", "v_head.weight", "score.weight",
              "h.0.attn.bias", "h.0.attn.rotary_emb.inv_freqs",
              "h.0.crossattention.c_attn.weight"}) {
            const std::string message = refusal_of_more({prefix + name, {4}, {0, 0, 0, 0}}, prefix);
            EXPECT_THAT(message, HasSubstr(prefix + name));
            EXPECT_THAT(message, HasSubstr("model.from"));
        }
    }
    std::vector<Stored> tensors = whole();
    for (int i = 10; i < 19; ++i) {
        tensors.push_back({"extra." + std::to_string(i), {1}, {1}});
    }
    const std::string message = refusal(tensors);
    EXPECT_THAT(message, HasSubstr("extra.10"));
    EXPECT_THAT(message, HasSubstr(" and 4 more"));
    EXPECT_THAT(message, Not(HasSubstr("extra.18")));
    EXPECT_THAT(refusal_of_more({"line\nbreak", {1}, {1}}), Not(HasSubstr("\n")));
}

TEST_F(PretrainedTest, LeavesOutConstantsThatModelsCompute) {
    EXPECT_EQ(refusal_of_more({"h.0.attn.bias", {1, 1, 2, 2}, {1, 0, 1, 1}}), "");
    EXPECT_EQ(refusal_of_more({"transformer.h.0.attn.masked_bias", {}, {-1e4F}}), "");
    settings_.architecture = config::ModelFamily::llama;
    settings_.tied = false;
    EXPECT_EQ(refusal_of_more({"model.layers.0.self_attn.rotary_emb.inv_freq", {1}, {1}}), "");
}

TEST_F(PretrainedTest, TakesASecondCopyOnlyIfItHasTheSameValues) {
    for (const std::string name : {"lm_head.weight", "transformer.wte.weight"}) {
        Stored copy = whole().front();
        ASSERT_EQ(copy.name, "wte.weight");
        copy.name = name;
        EXPECT_EQ(refusal_of_more(copy), "") << name;
        copy.values.back() += 1;
        if (name == "lm_head.weight") {
            EXPECT_THAT(refusal_of_more(copy), HasSubstr("lm_head.weight"));
        } else {
            EXPECT_THAT(refusal_of_more(copy), HasSubstr("(wte.weight)")) << "the prefix counts";
        }
    }
    // In an untied model the head is a parameter, and there is no other place for a second one.
    settings_.tied = false;
    EXPECT_EQ(refusal(whole()), "");
}

}  // namespace
}  // namespace nearstep::train
