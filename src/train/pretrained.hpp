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
    // Finds tensors by parameter name, with or without the prefix "transformer.". Throws
    // ConfigError if the files are unusable, if a parameter is missing, has another shape, or is
    // not fp32, fp16 or bf16, or if a tensor is left over that another model would use. Ignored are
    // the masks and rotary frequencies that old files hold, and second copies of a parameter, such
    // as a tied head.
    Pretrained(const std::string& path, const model::Geometry& geometry);

    // Elements [begin, begin + values.size()), all of them the geometry's.
    void fill(std::size_t begin, std::span<float> values) const;

private:
    void refuse_leftovers(const std::string& path, const model::Geometry& geometry) const;
    bool is_copy(const std::string& name, const checkpoint::StoredTensor& tensor,
                 const model::Geometry& geometry) const;

    struct TensorPart {
        std::size_t offset = 0;  // in the parameter vector
        std::size_t elems = 0;
        const checkpoint::StoredTensor* tensor = nullptr;
    };

    checkpoint::Safetensors files_;
    std::vector<TensorPart> parts_;
};

}  // namespace nearstep::train
