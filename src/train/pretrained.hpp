// Start values from a folder of safetensors, as Hugging Face publishes models.
#pragma once

#include "checkpoint/safetensors.hpp"
#include "model/geometry.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace nearstep::train {

// Reads what it is asked for and no more: the files are mapped.
class Pretrained {
public:
    // Tensors are found by the parameters' names, also behind "transformer."; others are not
    // looked at. Throws ConfigError if the files cannot be used, or a parameter is missing or has
    // another shape or a format other than fp32, fp16 and bf16.
    Pretrained(const std::string& path, const model::Geometry& geometry);

    // Elements [begin, begin + values.size()) of the parameter vector; padding is 0.
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
