// Files of tensors as Hugging Face publishes them: a JSON header, then the tensors' bytes.
// The format: https://github.com/huggingface/safetensors#format
#pragma once

#include "base/dtype.hpp"
#include "base/input_file.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nearstep::checkpoint {

struct StoredTensor {
    std::vector<std::int64_t> shape;  // row-major
    std::optional<Dtype> dtype;       // none: a format that we cannot read
    InputFile file;
    std::size_t offset = 0;  // in the file
    std::size_t bytes = 0;
};

// The tensors of a file, or of a folder's model.safetensors or of the shards that its
// model.safetensors.index.json names. The tensors are read when they are used, so they take
// no memory.
class Safetensors {
public:
    using Tensors = std::map<std::string, StoredTensor, std::less<>>;

    // Throws ConfigError with the file's name if a file is missing, truncated or damaged: its
    // header is not JSON, tensors overlap, end past the file or do not match their shape, or a
    // shard lacks a tensor of the index. Also if the folder has another model.safetensors, or a
    // model-*.safetensors that the index does not name, since these belong to another model.
    explicit Safetensors(const std::string& path);

    // All of them by name, those of a shard that the index does not list as well.
    const Tensors& tensors() const { return tensors_; }

    // Null if no tensor has this name.
    const StoredTensor* find(const std::string& name) const;

    // Reads elements from `first` on, widened to fp32. The tensor must have a dtype. Throws
    // IoError.
    static void read(const StoredTensor& tensor, std::size_t first, std::span<float> values);

private:
    static Tensors open(const std::string& path);

    Tensors tensors_;
};

}  // namespace nearstep::checkpoint
