// Files of tensors as Hugging Face publishes them: a JSON header, then the tensors' bytes.
// The format: https://github.com/huggingface/safetensors#format
#pragma once

#include "base/dtype.hpp"
#include "base/mapped_file.hpp"

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
    std::optional<Dtype> dtype;       // none: another one, which cannot be read
    std::span<const std::byte> bytes;
};

// The tensors of a file, or of a folder's model.safetensors or of its shards, which
// model.safetensors.index.json names. The files are mapped: what is not read takes no memory.
class Safetensors {
public:
    // Throws ConfigError, with the file's name, if a file is missing, truncated or damaged: a
    // header that is no JSON, tensors that overlap, end past the file or have another size than
    // their shape, a tensor of the index that its shard has not.
    explicit Safetensors(const std::string& path);

    // Null: there is none of this name.
    const StoredTensor* find(const std::string& name) const;

    // Elements of the tensor from `first` on, widened to fp32. It has a dtype.
    static void read(const StoredTensor& tensor, std::size_t first, std::span<float> values);

private:
    using Tensors = std::map<std::string, StoredTensor, std::less<>>;

    Tensors open(const std::string& path);

    std::vector<MappedFile> files_;
    Tensors tensors_;
};

}  // namespace nearstep::checkpoint
