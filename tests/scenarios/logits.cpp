// Writes the logits of published models, for comparison with transformers:
//   logits fp32|bf16 COLUMNS FOLDER...
// For each folder with config.json and safetensors: FOLDER/logits.FORMAT, fp32 values of two rows
// of COLUMNS tokens, whose token i is (7 i i + 3 i) modulo the vocabulary.
#include "config/load.hpp"
#include "model/architecture.hpp"
#include "model/hugging_face.hpp"
#include "train/pretrained.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

using namespace nearstep;

config::ModelSettings settings_of(const std::string& folder) {
    const std::string path = folder + "/config.json";
    std::ifstream file(path);
    const std::string content{std::istreambuf_iterator<char>(file), {}};
    config::Sources sources{.config_path = "none"};
    sources.model = model::read_hugging_face_config(path, content);
    sources.needs_data = false;
    return config::parse(sources).model;
}

std::vector<at::Tensor> parameters_of(const model::Geometry& geometry, std::vector<float>& values) {
    std::vector<at::Tensor> parameters;
    for (const model::Parameter& parameter : geometry.parameters) {
        parameters.push_back(
            at::from_blob(values.data() + parameter.offset, parameter.shape, at::kFloat));
    }
    return parameters;
}

at::Tensor logits_of(const std::string& folder, at::ScalarType format, std::int64_t columns) {
    const config::ModelSettings settings = settings_of(folder);
    const model::Geometry geometry = model::describe(settings);
    std::vector<float> values(geometry.elems);
    train::Pretrained(folder, geometry).fill(0, values);
    const std::vector<at::Tensor> parameters = parameters_of(geometry, values);
    const at::Tensor index = at::arange(2 * columns, at::kLong).view({2, columns});
    at::Tensor state = (7 * index * index + 3 * index).remainder(settings.vocabulary);
    const auto functions = model::architecture_of(settings.architecture).make_functions(settings);
    for (std::size_t block = 0; block < functions.size(); ++block) {
        const model::Block& range = geometry.blocks[block];
        std::vector<at::Tensor> own(
            parameters.begin() + static_cast<std::ptrdiff_t>(range.first_parameter),
            parameters.begin() + static_cast<std::ptrdiff_t>(range.last_parameter));
        for (const std::size_t borrowed : functions[block].borrowed) {
            own.push_back(parameters[borrowed]);
        }
        if (functions[block].format == model::BlockFormat::compute) {
            for (at::Tensor& parameter : own) {
                parameter = parameter.to(format);
            }
        }
        state = functions[block].run(own, state, model::OutputUse::values).to(format);
    }
    return state.to(at::kFloat).contiguous();
}

}  // namespace

int main(int argc, char** argv) {
    const std::vector<std::string> words(argv + 1, argv + argc);
    const c10::NoGradGuard no_grad;
    for (std::size_t i = 2; i < words.size(); ++i) {
        const at::Tensor logits = logits_of(
            words[i], words[0] == "bf16" ? at::kBFloat16 : at::kFloat, std::stoll(words[1]));
        std::ofstream(words[i] + "/logits." + words[0], std::ios::binary)
            .write(static_cast<const char*>(logits.const_data_ptr()),
                   static_cast<std::streamsize>(logits.nbytes()));
    }
}
