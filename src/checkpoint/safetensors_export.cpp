// Writes a checkpoint's masters as a folder of safetensors. Used by the command export and Python.
#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/formatted.hpp"
#include "base/input_file.hpp"
#include "base/plain_file.hpp"
#include "base/units.hpp"
#include "checkpoint/checkpoint_files.hpp"
#include "checkpoint/export.hpp"
#include "checkpoint/masters.hpp"
#include "store/storage_folder.hpp"

#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <utility>

namespace nearstep::checkpoint {

namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

const char* tag_of(Dtype dtype) {
    return dtype == Dtype::fp32 ? "F32" : dtype == Dtype::fp16 ? "F16" : "BF16";
}

// A tensor of the output: one of the checkpoint, or another one.
struct OutputTensor {
    TensorPlace place;  // without an offset for another one
    std::string dtype;
    std::size_t bytes = 0;
    const OtherTensor* other = nullptr;  // null: of the checkpoint
};

std::vector<OutputTensor> tensors_of(const Description& about, Dtype dtype,
                                     std::span<const OtherTensor> others) {
    std::vector<OutputTensor> tensors;
    std::set<std::string> names;
    const auto add = [&](OutputTensor tensor) {
        if (!names.insert(tensor.place.name).second) {
            throw ConfigError(text("Cannot export two tensors of one name, ",
                                   nlohmann::json(tensor.place.name).dump(),
                                   ": rename one of them."));
        }
        tensors.push_back(std::move(tensor));
    };
    for (const TensorPlace& place : in_order(about.tensors)) {
        add({.place = place,
             .dtype = tag_of(dtype),
             .bytes = elems_of(place.shape) * size_bytes(dtype)});
    }
    for (const OtherTensor& other : others) {
        add({.place = {.name = other.name, .shape = other.shape},
             .dtype = other.dtype,
             .bytes = other.bytes,
             .other = &other});
    }
    return tensors;
}

using Shards = std::vector<std::vector<OutputTensor>>;

// Groups consecutive tensors into shards of at least one tensor.
Shards shards_of(std::vector<OutputTensor> tensors, std::size_t shard_bytes) {
    Shards shards(1);
    std::size_t bytes = 0;
    for (OutputTensor& tensor : tensors) {
        if (!shards.back().empty() && bytes + tensor.bytes > shard_bytes) {
            shards.emplace_back();
            bytes = 0;
        }
        bytes += tensor.bytes;
        shards.back().push_back(std::move(tensor));
    }
    return shards;
}

std::string shard_name(std::size_t shard, std::size_t shards) {
    if (shards == 1) {
        return "model.safetensors";
    }
    return formatted("model-%05zu-of-%05zu.safetensors", shard + 1, shards);
}

class Output {
public:
    // Makes the file. `bytes`: the bytes that will be written.
    Output(std::string path, std::size_t bytes)
        : path_(std::move(path)), bytes_(bytes), file_(make_plain(path_, 0666)) {
        if (!file_) {
            refuse_write(path_, errno);
        }
    }

    void write(std::span<const std::byte> bytes) {
        if (const int code = write_all(file_, bytes); code != 0) {
            refuse_write(path_, code, bytes_);
        }
        digest_.add(bytes);
    }
    void write(const std::string& words) { write(std::as_bytes(std::span(words))); }

    // Syncs the file and reads it back.
    void close() {
        if (::fsync(file_.get()) != 0) {
            refuse_write(path_, errno, bytes_);
        }
        file_ = Descriptor();
        drop_cached(path_);
        const InputFile written(path_, "The file", "export again.");
        Xxh3Stream digest;
        std::vector<std::byte> piece(MiB);
        for (std::size_t at = 0; at < written.size(); at += piece.size()) {
            const auto part = std::span(piece).first(std::min(MiB, written.size() - at));
            written.read(at, part);
            digest.add(part);
        }
        if (digest.digest() != digest_.digest()) {
            refuse_read_back(path_);
        }
    }

private:
    std::string path_;
    std::size_t bytes_;
    Xxh3Stream digest_;
    Descriptor file_;
};

void write_file(const std::string& path, const std::string& words) {
    Output file(path, words.size());
    file.write(words);
    file.close();
}

// The header with its length in front, padded so that the tensors are aligned.
std::string header_of(const std::vector<OutputTensor>& tensors) {
    OrderedJson json;
    json["__metadata__"] = {{"format", "pt"}};  // transformers requires it
    std::size_t at = 0;
    for (const OutputTensor& tensor : tensors) {
        const std::size_t end = at + tensor.bytes;
        json[tensor.place.name] = {
            {"dtype", tensor.dtype}, {"shape", tensor.place.shape}, {"data_offsets", {at, end}}};
        at = end;
    }
    std::string words = json.dump();
    words.resize(round_up(words.size(), sizeof(std::uint64_t)), ' ');
    std::string bytes;
    for (unsigned shift = 0; shift < 64; shift += 8) {
        bytes.push_back(static_cast<char>(words.size() >> shift));
    }
    return bytes + words;
}

void write_shard(const std::string& path, const std::vector<OutputTensor>& tensors, Dtype dtype,
                 Masters& masters) {
    const std::string header = header_of(tensors);
    std::size_t needed = header.size();
    for (const OutputTensor& tensor : tensors) {
        needed += tensor.bytes;
    }
    Output file(path, needed);
    file.write(header);
    for (const OutputTensor& tensor : tensors) {
        if (tensor.other == nullptr) {
            masters.convert(
                tensor.place, dtype,
                [&](std::size_t, std::span<const std::byte> bytes) { file.write(bytes); });
            continue;
        }
        const std::span<const std::byte> content = tensor.other->content();
        expects(content.size() == tensor.bytes, "a tensor has the bytes that its header says");
        file.write(content);
    }
    file.close();
}

void write_index(const std::string& path, const Shards& shards) {
    OrderedJson json;
    std::size_t bytes = 0;
    for (std::size_t shard = 0; shard < shards.size(); ++shard) {
        for (const OutputTensor& tensor : shards[shard]) {
            json["weight_map"][tensor.place.name] = shard_name(shard, shards.size());
            bytes += tensor.bytes;
        }
    }
    json["metadata"] = {{"total_size", bytes}};
    write_file(path, json.dump(2) + "\n");
}

bool is_part_of_export(const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    return is_own_plain(entry.path().string()) &&
           (name == "config.json" || name == "generation_config.json" ||
            (name.starts_with("model") &&
             (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json"))));
}

// Removes what an export that did not end left. Throws ConfigError if the folder has anything else.
void remove_partial(const std::string& partial) {
    std::error_code error;
    if (!fs::exists(fs::symlink_status(partial, error))) {
        return;
    }
    const auto refuse = [&] {
        throw ConfigError(text("Cannot replace ", partial,
                               ": it is not what a crash of nearstep left. Remove it, or name "
                               "another folder."));
    };
    std::vector<fs::path> files;
    if (!fs::is_directory(fs::symlink_status(partial, error))) {
        refuse();
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(partial)) {
        if (!is_part_of_export(entry)) {
            refuse();
        }
        files.push_back(entry.path());
    }
    for (const fs::path& file : files) {
        fs::remove(file);
    }
    fs::remove(partial);
}

void check_place(const std::string& folder) {
    std::error_code ignored;
    const fs::file_status found = fs::symlink_status(folder, ignored);  // no link can be replaced
    if (fs::exists(found) && !(fs::is_directory(found) && fs::is_empty(folder, ignored))) {
        throw ConfigError(
            text("Cannot export to ", folder, ": it is there already. Name a new folder."));
    }
    if (!fs::is_directory(store::folder_of(folder), ignored)) {
        throw ConfigError(text("Cannot export to ", folder, ": there is no folder ",
                               store::folder_of(folder), ". Make it first, or name another."));
    }
}

void make_partial(const std::string& partial) {
    remove_partial(partial);
    if (std::error_code error; !fs::create_directory(partial, error)) {
        throw ConfigError(text("Cannot make ", partial, ": ", error.message(),
                               ". Name a place that can be written."));
    }
}

// Writes this rank's shards: one after another to each rank in turn.
void write_shards(const mpi::Communicator& world, const std::string& partial, const Shards& shards,
                  Dtype dtype, Reader& reader) {
    if (std::error_code ignored; !fs::is_directory(partial, ignored)) {
        throw ConfigError(text("Rank ", world.rank(), " does not see ", partial,
                               ", which rank 0 has made: export to a folder that the hosts of all "
                               "ranks share."));
    }
    Masters masters(reader);
    const auto ranks = static_cast<std::size_t>(world.size());
    for (auto shard = static_cast<std::size_t>(world.rank()); shard < shards.size();
         shard += ranks) {
        write_shard(partial + "/" + shard_name(shard, shards.size()), shards[shard], dtype,
                    masters);
    }
}

void write_texts(const std::string& partial, const ModelTexts& texts) {
    for (const auto& [name, words] :
         {std::pair("/config.json", texts.config),
          std::pair("/generation_config.json", texts.generation_config)}) {
        if (!words.empty()) {
            write_file(partial + name, words);
        }
    }
}

void publish_folder(const std::string& folder, const std::string& partial,
                    const std::string& place) {
    if (std::error_code error; (fs::rename(partial, place, error), error)) {
        throw ConfigError(
            text("Cannot export to ", folder, ": ", error.message(), ". Name a new folder."));
    }
    sync_folder(store::folder_of(place));
}

}  // namespace

void export_safetensors(const mpi::Communicator& world, const std::string& index_path,
                        const std::string& folder, Dtype dtype, std::size_t shard_bytes,
                        const TextsOf& texts, std::span<const OtherTensor> others) {
    std::unique_ptr<Reader> reader;
    Shards shards;
    world.together([&] {
        reader = Reader::open(index_path);
        shards = shards_of(tensors_of(reader->description(), dtype, others), shard_bytes);
    });
    const std::string place = folder.substr(0, folder.find_last_not_of('/') + 1);
    const std::string partial = place + kPartial;
    world.on_rank_0([&] {
        check_place(place);
        make_partial(partial);
    });
    try {
        world.together([&] { write_shards(world, partial, shards, dtype, *reader); });
        world.on_rank_0([&] {
            if (shards.size() > 1) {
                write_index(partial + "/model.safetensors.index.json", shards);
            }
            write_texts(partial, texts(reader->description()));
            sync_folder(partial);
            publish_folder(folder, partial, place);
        });
    } catch (...) {
        if (world.rank() == 0) {
            remove_partial(partial);
        }
        throw;
    }
}

}  // namespace nearstep::checkpoint
