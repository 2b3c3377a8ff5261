#include "train/pretrained.hpp"

#include "base/error.hpp"

#include <algorithm>

namespace nearstep::train {

namespace {

std::string words_of(const std::vector<std::int64_t>& shape) {
    std::string words;
    for (const std::int64_t size : shape) {
        words += (words.empty() ? "" : " x ") + std::to_string(size);
    }
    return words;
}

}  // namespace

Pretrained::Pretrained(const std::string& path, const model::Geometry& geometry) : files_(path) {
    for (const model::Parameter& parameter : geometry.parameters) {
        const checkpoint::StoredTensor* tensor = files_.find("transformer." + parameter.name);
        if (tensor == nullptr) {
            tensor = files_.find(parameter.name);
        }
        if (tensor == nullptr) {
            throw ConfigError(
                text("model.from: ", path, " has no tensor ", parameter.name,
                     ": name a whole model, and set [model] as its config.json says."));
        }
        if (tensor->shape != parameter.shape) {
            throw ConfigError(text("model.from: ", parameter.name, " of ", path, " is ",
                                   words_of(tensor->shape), ", the settings make it ",
                                   words_of(parameter.shape),
                                   ": set [model] as its config.json says."));
        }
        if (!tensor->dtype) {
            throw ConfigError(text("model.from: ", parameter.name, " of ", path,
                                   " is in a format that cannot be read: save it in F32, F16 or "
                                   "BF16."));
        }
        parts_.push_back({parameter.offset, parameter.elems, tensor});
    }
}

void Pretrained::fill(std::size_t begin, std::span<float> values) const {
    const std::size_t end = begin + values.size();
    for (const Part& part : parts_) {
        const std::size_t first = std::max(begin, part.offset);
        const std::size_t last = std::min(end, part.offset + part.elems);
        if (first < last) {
            checkpoint::Safetensors::read(*part.tensor, first - part.offset,
                                          values.subspan(first - begin, last - first));
        }
    }
}

}  // namespace nearstep::train
