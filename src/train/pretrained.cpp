// Finds the start values of a model in safetensors. Used by the trainer.
#include "train/pretrained.hpp"

#include "base/error.hpp"
#include "config/value.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

namespace nearstep::train {

namespace {

constexpr std::string_view kPrefix = "transformer.";

std::string_view without_prefix(std::string_view name) {
    return name.substr(name.starts_with(kPrefix) ? kPrefix.size() : 0);
}

// Whether the tensor is a constant that models compute themselves and files of older versions of
// transformers hold: GPT-2's causal masks, or the frequencies of rotary positions.
bool is_constant(const std::string& name, const checkpoint::StoredTensor& tensor) {
    return (name.ends_with(".attn.bias") && tensor.shape.size() == 4) ||
           (name.ends_with(".attn.masked_bias") && tensor.shape.size() <= 1) ||
           (name.ends_with(".rotary_emb.inv_freq") && tensor.shape.size() == 1);
}

bool are_equal(const checkpoint::StoredTensor& one, const checkpoint::StoredTensor& other,
               std::size_t elems) {
    std::array<float, 4096> a{};
    std::array<float, 4096> b{};
    for (std::size_t done = 0; done < elems; done += a.size()) {
        const std::size_t count = std::min(a.size(), elems - done);
        checkpoint::Safetensors::read(one, done, std::span(a).first(count));
        checkpoint::Safetensors::read(other, done, std::span(b).first(count));
        if (!std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(count), b.begin())) {
            return false;
        }
    }
    return true;
}

// The first few, quoted so that they fit on one line.
std::string listed(const std::vector<std::string>& names) {
    constexpr std::size_t kMost = 5;
    std::string words;
    for (std::size_t i = 0; i < std::min(kMost, names.size()); ++i) {
        words += (i > 0 ? ", " : "") + config::on_one_line(names[i]);
    }
    return words + (names.size() > kMost ? text(" and ", names.size() - kMost, " more") : "");
}

}  // namespace

Pretrained::Pretrained(const std::string& path, const model::Geometry& geometry) : files_(path) {
    for (const model::Parameter& parameter : geometry.parameters) {
        const checkpoint::StoredTensor* tensor = files_.find(std::string(kPrefix) + parameter.name);
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
                                   joined(tensor->shape, " x "), ", the settings make it ",
                                   joined(parameter.shape, " x "),
                                   ": set [model] as its config.json says."));
        }
        if (!tensor->dtype) {
            throw ConfigError(text("model.from: ", parameter.name, " of ", path,
                                   " is in a format that cannot be read: save it in F32, F16 or "
                                   "BF16."));
        }
        parts_.push_back({parameter.offset, parameter.elems, tensor});
    }
    refuse_leftovers(path, geometry);
}

// Whether the tensor has the values of the parameter of its name or, as the head of a tied model,
// of the embedding.
bool Pretrained::is_copy(const std::string& name, const checkpoint::StoredTensor& tensor,
                         const model::Geometry& geometry) const {
    const std::string_view bare = without_prefix(name);
    for (std::size_t i = 0; i < parts_.size(); ++i) {
        const std::string& of = geometry.parameters[i].name;
        const bool is_head = i == 0 && bare == model::kOutputWeights;
        if ((of == bare || is_head) && tensor.dtype && tensor.shape == parts_[i].tensor->shape) {
            return are_equal(tensor, *parts_[i].tensor, parts_[i].elems);
        }
    }
    return false;
}

void Pretrained::refuse_leftovers(const std::string& path, const model::Geometry& geometry) const {
    std::set<const checkpoint::StoredTensor*> used;
    for (const TensorPart& part : parts_) {
        used.insert(part.tensor);
    }
    std::vector<std::string> left;
    for (const auto& [name, tensor] : files_.tensors()) {
        if (!used.contains(&tensor) && !is_constant(name, tensor) &&
            !is_copy(name, tensor, geometry)) {
            left.push_back(name);
        }
    }
    if (!left.empty()) {
        throw ConfigError(
            text("model.from: ", path, " has ", left.size() == 1 ? "a tensor" : "tensors",
                 " that the model has no place for (", listed(left),
                 "), so the settings describe another model: correct its config.json or [model], "
                 "or save it without them."));
    }
}

void Pretrained::fill(std::size_t begin, std::span<float> values) const {
    const std::size_t end = begin + values.size();
    for (const TensorPart& part : parts_) {
        const std::size_t first = std::max(begin, part.offset);
        const std::size_t last = std::min(end, part.offset + part.elems);
        if (first < last) {
            checkpoint::Safetensors::read(*part.tensor, first - part.offset,
                                          values.subspan(first - begin, last - first));
        }
    }
}

}  // namespace nearstep::train
