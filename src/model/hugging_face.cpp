#include "model/hugging_face.hpp"

#include "base/error.hpp"
#include "model/architecture.hpp"

#include <nlohmann/json.hpp>

namespace nearstep::model {

std::string hugging_face_config(const config::ModelSettings& settings, Dtype dtype) {
    expects(find_architecture(settings.architecture).name == "gpt", "the architecture is GPT-2's");
    const char* word = dtype == Dtype::fp32   ? "float32"
                       : dtype == Dtype::fp16 ? "float16"
                                              : "bfloat16";
    const nlohmann::ordered_json json = {{"architectures", {"GPT2LMHeadModel"}},
                                         {"model_type", "gpt2"},
                                         {"vocab_size", settings.vocabulary},
                                         {"n_positions", settings.context},
                                         {"n_embd", settings.width},
                                         {"n_layer", settings.layers},
                                         {"n_head", settings.heads},
                                         {"activation_function", "gelu_new"},
                                         {"layer_norm_epsilon", 1e-5},
                                         {"resid_pdrop", 0.0},
                                         {"embd_pdrop", 0.0},
                                         {"attn_pdrop", 0.0},
                                         {"bos_token_id", nullptr},
                                         {"eos_token_id", nullptr},
                                         {"tie_word_embeddings", true},
                                         {"torch_dtype", word}};
    return json.dump(2) + "\n";
}

}  // namespace nearstep::model
