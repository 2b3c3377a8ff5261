// Start values from a safetensors folder in Hugging Face's format.
#pragma once

#include "checkpoint/safetensors.hpp"
#include "model/geometry.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace nearstep::train {

// Maps the files, and reads only what is asked for.
class Pretrained {
public:
    // Finds tensors by parameter name, with or without the prefix "transformer."; others are
    // ignored. Throws ConfigError if the files are unusable, or if a parameter is missing, has
    // another shape, or is not fp32, fp16 or bf16.
    Pretrained(const std::string& path, const model::Geometry& geometry);

    // Elements [begin, begin + values.size()), all of them the geometry's.
    void fill(std::size_t begin, std::span<float> values) const;

private:
    struct Part {
        std::size_t offset = 0;  // in the parameter vector
        std::size_t elems = 0;
        const checkpoint::StoredTensor* tensor = nullptr;
    };

    checkpoint::Safetensors files_;
    std::vector<Part> parts_;
};

}  // namespace nearstep::train
