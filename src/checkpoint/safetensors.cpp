#include "checkpoint/safetensors.hpp"

#include "base/error.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string_view>
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

Json parse(const std::string& path, std::span<const std::byte> from) {
    const auto* begin = reinterpret_cast<const char*>(from.data());
    Json json = Json::parse(begin, begin + from.size(), nullptr, false);
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

// Parses a tensor's header entry. `data`: the bytes after the header.
StoredTensor tensor_of(const std::string& path, const std::string& name, const Json& entry,
                       std::span<const std::byte> data) {
    StoredTensor tensor;
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
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data.size()) {
        refuse(path, text("its tensor ", quoted(name), " lies outside of the file"));
    }
    tensor.bytes = data.subspan(offsets[0], offsets[1] - offsets[0]);
    const std::optional<std::size_t> elems = elems_in(tensor.shape);
    if (!elems || (tensor.dtype && (tensor.bytes.size() % size_bytes(*tensor.dtype) != 0 ||
                                    tensor.bytes.size() / size_bytes(*tensor.dtype) != *elems))) {
        refuse(path, text("its tensor ", quoted(name), " has another size than its shape"));
    }
    return tensor;
}

void refuse_overlaps(const std::string& path,
                     const std::map<std::string, StoredTensor, std::less<>>& tensors) {
    std::vector<std::span<const std::byte>> parts;
    parts.reserve(tensors.size());
    for (const auto& [name, tensor] : tensors) {
        parts.push_back(tensor.bytes);
    }
    std::ranges::sort(parts, {}, [](const auto& part) { return part.data(); });
    for (std::size_t i = 1; i < parts.size(); ++i) {
        if (parts[i - 1].data() + parts[i - 1].size() > parts[i].data()) {
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
    if (!fs::is_directory(path)) {
        tensors_ = open(path);
        return;
    }
    const std::string index = path + "/model.safetensors.index.json";
    if (!fs::exists(index)) {
        tensors_ = open(path + "/model.safetensors");
        return;
    }
    const MappedFile file(index, "The safetensors index", kAdvice);
    const Json json = parse(index, file.bytes());
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
    files_.emplace_back(path, "The safetensors file",
                        "name a file, or a folder with model.safetensors or its shards.");
    const std::span<const std::byte> all = files_.back().bytes();
    std::uint64_t header_bytes = 0;
    if (all.size() < sizeof header_bytes) {
        refuse(path, "it ends within its header");
    }
    std::memcpy(&header_bytes, all.data(), sizeof header_bytes);
    const std::span<const std::byte> rest = all.subspan(sizeof header_bytes);
    if (header_bytes > std::min<std::uint64_t>(rest.size(), kMostHeaderBytes)) {
        refuse(path, "it ends within its header");
    }
    const Json header = parse(path, rest.first(header_bytes));
    Tensors tensors;
    for (const auto& [name, entry] : header.items()) {
        if (name != "__metadata__") {
            tensors.emplace(name, tensor_of(path, name, entry, rest.subspan(header_bytes)));
        }
    }
    refuse_overlaps(path, tensors);
    return tensors;
}

const StoredTensor* Safetensors::find(const std::string& name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
}

// A header can have any length, so the tensors can be unaligned.
void Safetensors::read(const StoredTensor& tensor, std::size_t first, std::span<float> values) {
    const std::size_t each = size_bytes(tensor.dtype.value());
    const std::span<const std::byte> from =
        tensor.bytes.subspan(first * each, values.size() * each);
    alignas(float) std::array<std::byte, 16384>
        aligned;  // NOLINT(cppcoreguidelines-pro-type-member-init)
    for (std::size_t done = 0; done < from.size(); done += aligned.size()) {
        const std::size_t bytes = std::min(aligned.size(), from.size() - done);
        std::memcpy(aligned.data(), from.data() + done, bytes);
        convert_to_fp32(*tensor.dtype, aligned.data(), values.data() + done / each, bytes / each);
    }
}

}  // namespace nearstep::checkpoint
