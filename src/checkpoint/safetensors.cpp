// Opens and checks files of safetensors. Used by the trainer and by Python for start values.
#include "checkpoint/safetensors.hpp"

#include "base/error.hpp"
#include "base/folder_tree.hpp"
#include "base/json_text.hpp"
#include "base/units.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <utility>

namespace nearstep::checkpoint {

namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

// The limit of Hugging Face's own reader.
constexpr std::uint64_t kMostHeaderBytes = 100'000'000;

constexpr const char* kAdvice = "download or write it again.";

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
    throw ConfigError(
        text("The safetensors file ", path, " cannot be used, since ", why, ": ", kAdvice));
}

// Quotes and escapes a name from a file, so that it fits on one line.
std::string quoted(const std::string& name) {
    return Json(name).dump(-1, ' ', true, Json::error_handler_t::replace);
}

Json parse(const std::string& path, const std::string& words) {
    if (is_nested_too_deeply(words)) {
        refuse(path, "its header is nested too deeply");
    }
    Json json = Json::parse(words, nullptr, false);
    if (!json.is_object()) {
        refuse(path, "its header is no JSON object");
    }
    return json;
}

std::optional<Dtype> dtype_of(const std::string& name) {
    const std::array<std::pair<const char*, Dtype>, 3> known = {
        {{"F32", Dtype::fp32}, {"F16", Dtype::fp16}, {"BF16", Dtype::bf16}}};
    const auto* const found = std::ranges::find(known, name, &std::pair<const char*, Dtype>::first);
    return found == known.end() ? std::nullopt : std::optional(found->second);
}

// Product of the sizes; nullopt if a size is negative or the product exceeds 2^63 - 1.
std::optional<std::size_t> elems_in(const std::vector<std::int64_t>& shape) {
    constexpr auto kMost = static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max());
    std::size_t elems = 1;
    for (const std::int64_t size : shape) {
        if (size < 0 || (size > 0 && elems > kMost / static_cast<std::size_t>(size))) {
            return std::nullopt;
        }
        elems *= static_cast<std::size_t>(size);
    }
    return elems;
}

// Parses a tensor's header entry. `data`: where the bytes after the header begin.
StoredTensor tensor_of(const InputFile& file, const std::string& name, const Json& entry,
                       std::size_t data) {
    const std::string& path = file.path();
    StoredTensor tensor{.shape = {}, .dtype = {}, .file = file};
    std::vector<std::uint64_t> offsets;
    try {
        tensor.dtype = dtype_of(entry.at("dtype").get<std::string>());
        tensor.shape = entry.at("shape").get<std::vector<std::int64_t>>();
        for (const Json& offset : entry.at("data_offsets")) {
            if (!offset.is_number_unsigned()) {
                refuse(path, text("an offset of its tensor ", quoted(name), " is no whole number"));
            }
            offsets.push_back(offset.get<std::uint64_t>());
        }
    } catch (const Json::exception&) {
        refuse(path, text("its header does not describe the tensor ", quoted(name)));
    }
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > file.size() - data) {
        refuse(path, text("its tensor ", quoted(name), " lies outside of the file"));
    }
    tensor.offset = data + offsets[0];
    tensor.bytes = offsets[1] - offsets[0];
    const std::optional<std::size_t> elems = elems_in(tensor.shape);
    if (!elems || (tensor.dtype && (tensor.bytes % size_bytes(*tensor.dtype) != 0 ||
                                    tensor.bytes / size_bytes(*tensor.dtype) != *elems))) {
        refuse(path, text("its tensor ", quoted(name), " has another size than its shape"));
    }
    return tensor;
}

void refuse_overlaps(const std::string& path,
                     const std::map<std::string, StoredTensor, std::less<>>& tensors) {
    std::vector<std::pair<std::size_t, std::size_t>> parts;  // begin and end
    parts.reserve(tensors.size());
    for (const auto& [name, tensor] : tensors) {
        parts.emplace_back(tensor.offset, tensor.offset + tensor.bytes);
    }
    std::ranges::sort(parts);
    for (std::size_t i = 1; i < parts.size(); ++i) {
        if (parts[i - 1].second > parts[i].first) {
            refuse(path, "its tensors overlap");
        }
    }
}

// Refuses files of tensors that no entry of the index leads to: a save that was interrupted, or
// that went to a folder with another model, leaves them.
void refuse_other_files(const std::string& folder, const std::string& index,
                        const std::map<std::string, Safetensors::Tensors>& shards) {
    std::error_code unreadable;
    for (const auto& entry : fs::directory_iterator(folder, unreadable)) {
        const std::string name = entry.path().filename().string();
        const bool is_model = name == "model.safetensors" ||
                              (name.starts_with("model-") && name.ends_with(".safetensors"));
        if (is_model && !shards.contains((fs::path(index).parent_path() / name).string())) {
            throw ConfigError(text("The folder ", folder, " holds ", quoted(name),
                                   ", which its model.safetensors.index.json does not name, so "
                                   "two models may be mixed: remove the file or the index."));
        }
    }
}

std::string shard_path(const std::string& index, const std::string& name) {
    const std::string shown = quoted(name);
    if (name.empty() || fs::path(name).filename() != name || shown != '"' + name + '"') {
        refuse(index, text("it names a shard ", shown, ", which is no plain file name"));
    }
    return (fs::path(index).parent_path() / name).string();
}

}  // namespace

Safetensors::Safetensors(const std::string& path) {
    std::error_code ignored;
    if (!fs::is_directory(path, ignored)) {
        tensors_ = open(path);
        return;
    }
    const std::string index = path + "/model.safetensors.index.json";
    if (!is_present(index)) {
        tensors_ = open(path + "/model.safetensors");
        return;
    }
    const Json json = parse(index, InputFile(index, "The safetensors index", kAdvice).read_all());
    const auto map = json.find("weight_map");
    if (map == json.end() || !map->is_object()) {
        refuse(index, "it has no weight_map");
    }
    std::map<std::string, Tensors> shards;
    for (const auto& [name, shard] : map->items()) {
        if (!shard.is_string()) {
            refuse(index, text("it names no shard for ", quoted(name)));
        }
        const std::string at = shard_path(index, shard.get<std::string>());
        auto found = shards.find(at);
        if (found == shards.end()) {
            found = shards.emplace(at, open(at)).first;
        }
        const auto tensor = found->second.find(name);
        if (tensor == found->second.end()) {
            refuse(at, text("it lacks the tensor ", quoted(name), ", which the index says it has"));
        }
        tensors_.insert(*tensor);
    }
    for (const auto& [at, tensors] : shards) {
        tensors_.insert(tensors.begin(), tensors.end());
    }
    refuse_other_files(path, index, shards);
}

Safetensors::Tensors Safetensors::open(const std::string& path) {
    const InputFile file(path, "The safetensors file",
                         "name a file, or a folder with model.safetensors or its shards.");
    std::uint64_t header_bytes = 0;
    if (file.size() < sizeof header_bytes) {
        refuse(path, "it ends within its header");
    }
    file.read(0, std::as_writable_bytes(std::span(&header_bytes, 1)));
    if (header_bytes >
        std::min<std::uint64_t>(file.size() - sizeof header_bytes, kMostHeaderBytes)) {
        refuse(path, "it ends within its header");
    }
    std::string words(header_bytes, '\0');
    file.read(sizeof header_bytes, std::as_writable_bytes(std::span(words)));
    const Json header = parse(path, words);
    const std::size_t data = sizeof header_bytes + header_bytes;
    Tensors tensors;
    for (const auto& [name, entry] : header.items()) {
        if (name != "__metadata__") {
            tensors.emplace(name, tensor_of(file, name, entry, data));
        }
    }
    refuse_overlaps(path, tensors);
    return tensors;
}

const StoredTensor* Safetensors::find(const std::string& name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
}

void Safetensors::read(const StoredTensor& tensor, std::size_t first, std::span<float> values) {
    const std::size_t each = size_bytes(tensor.dtype.value());
    const std::size_t bytes = values.size() * each;
    expects(first * each <= tensor.bytes && bytes <= tensor.bytes - first * each,
            "the elements are in the tensor");
    std::vector<std::byte> piece(std::min<std::size_t>(bytes, MiB));
    for (std::size_t done = 0; done < bytes; done += piece.size()) {
        const std::size_t size = std::min(piece.size(), bytes - done);
        tensor.file.read(tensor.offset + first * each + done, std::span(piece).first(size));
        convert_to_fp32(*tensor.dtype, piece.data(), values.data() + done / each, size / each);
    }
}

}  // namespace nearstep::checkpoint
