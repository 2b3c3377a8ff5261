// Writes a checkpoint's state as one HDF5 file. Used by the command export and by Python.
//
// Rank 0 makes the file with all datasets and no elements. Then all ranks write elements at once,
// with plain writes, and read them back. At the end rank 0 adds the digests and seals the file.
#include "checkpoint/export.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/executor.hpp"
#include "base/output_file.hpp"
#include "base/plain_file.hpp"
#include "checkpoint/checkpoint_files.hpp"
#include "checkpoint/export_tensors.hpp"
#include "checkpoint/exported_file.hpp"
#include "checkpoint/masters.hpp"
#include "checkpoint/texts_beside.hpp"
#include "store/storage_folder.hpp"

#include <fcntl.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

namespace nearstep::checkpoint {

namespace {

namespace fs = std::filesystem;

void check_place(const std::string& index_path, const std::string& out_path) {
    const std::string name = fs::path(out_path).filename().string();
    std::error_code ignored;
    if (name.empty() || fs::is_directory(out_path, ignored)) {
        throw ConfigError(
            text("Cannot export to ", out_path, ": it is a folder. Name a file in it."));
    }
    if (!fs::is_directory(store::folder_of(out_path), ignored)) {
        throw ConfigError(text("Cannot export to ", out_path, ": there is no folder ",
                               store::folder_of(out_path), ". Make it first, or name another."));
    }
    if (parse_name(name) || fs::equivalent(index_path, out_path, ignored)) {
        throw ConfigError(
            text("Cannot export to ", out_path, ": ", name,
                 " is how a file of a checkpoint is named. Choose another name, like model.h5."));
    }
}

// Makes the file with its attributes, and datasets whose elements are to be written.
void make_file(const std::string& path, const Description& about,
               std::span<const ExportTensor> tensors, const ModelTexts& texts) {
    h5::File file = h5::create_file(path, kSealBytes, 0666);
    h5::write_text(file.get(), "format", kExportFormat.name);
    h5::write_number<std::int64_t>(file.get(), "format_version", kExportFormat.version);
    h5::write_number(file.get(), "step", about.step);
    h5::write_number<std::uint64_t>(file.get(), "parameters", about.parameters);
    h5::write_text(file.get(), "config", about.config);
    h5::write_text(file.get(), "model", about.model);
    h5::write_text(file.get(), "commit", about.commit);
    h5::write_text(file.get(), "site", about.site);
    std::set<std::string> groups;
    for (const ExportTensor& tensor : tensors) {
        if (const std::string group = group_of(tensor.array);
            !group.empty() && groups.insert(group).second) {
            h5::finish(h5::make_group(file.get(), group), H5Gclose, text("write ", path));
        }
        const h5::Datatype type = make_type(tensor);
        const std::vector<hsize_t> extent(tensor.place.shape.begin(), tensor.place.shape.end());
        h5::Dataset dataset = h5::make_dataset(file.get(), tensor.path(), type.get(), extent);
        const auto note = texts.notes.find(tensor.place.name);
        if (note != texts.notes.end() && !note->second.layout.empty()) {
            h5::write_text(dataset.get(), "layout", note->second.layout);
        }
        if (note != texts.notes.end() && !note->second.ties.empty()) {
            h5::write_texts(dataset.get(), "ties", note->second.ties);
        }
        h5::finish(std::move(dataset), H5Dclose, text("write ", tensor.path()));
    }
    h5::close_file(std::move(file), path);
}

// The part of an export that one rank writes.
class Share {
public:
    // `path`: of the file that becomes `out_path`, which messages name.
    Share(const mpi::Communicator& world, std::string index_path, const std::string& path,
          std::string out_path, std::span<const ExportTensor> tensors)
        : index_path_(std::move(index_path)),
          path_(path),
          out_path_(std::move(out_path)),
          tensors_(tensors),
          own_(tensors_of_rank(tensors, world.rank(), world.size())),
          digests_(tensors.size()),
          bytes_(bytes_of(tensors)),
          file_(::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC)) {
        if (!file_) {
            throw_path_error(
                text("Rank ", world.rank(), " cannot open ", path, ", which rank 0 has made"),
                errno, "export to a folder that the hosts of all ranks share");
        }
    }

    // Returns the digests of this rank's tensors, and 0 for others.
    std::vector<std::uint64_t> write() {
        h5::StoredFile made(path_);
        std::vector<h5::Array> arrays(tensors_.size());
        std::vector<std::size_t> copied;  // of the checkpoint
        for (const std::size_t i : own_) {
            arrays[i] = made.dataset(tensors_[i].path());
            if (tensors_[i].other == nullptr) {
                copied.push_back(i);
            } else {
                digests_[i] = write_other(tensors_[i], arrays[i].offset);
            }
        }
        Executor executor(pool_threads() - 1);
        std::vector<std::unique_ptr<Reader>> readers(static_cast<std::size_t>(executor.members()));
        executor.share(copied.size(), [&](std::size_t at, int member) {
            std::unique_ptr<Reader>& reader = readers[static_cast<std::size_t>(member)];
            if (!reader) {
                reader = Reader::open(index_path_);
            }
            const std::size_t i = copied[at];
            digests_[i] = write_state(tensors_[i], arrays[i].offset, *reader);
        });
        if (::fsync(file_.get()) != 0) {
            refuse_write(out_path_, errno, bytes_);
        }
        drop_cached(path_);
        executor.share(own_.size(), [&](std::size_t at, int /*member*/) {
            const std::size_t i = own_[at];
            if (digest_of(made, arrays[i]) != digests_[i]) {
                refuse_read_back(path_);
            }
        });
        return digests_;
    }

private:
    void write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
        if (const int code = write_all_at(file_, offset, bytes); code != 0) {
            refuse_write(out_path_, code, bytes_);
        }
    }

    std::uint64_t write_state(const ExportTensor& tensor, std::uint64_t offset, Reader& reader) {
        Masters values(reader, tensor.array);
        Xxh3Stream digest;
        values.convert(tensor.place, tensor.dtype,
                       [&](std::size_t done, std::span<const std::byte> bytes) {
                           write_at(offset + done * size_bytes(tensor.dtype), bytes);
                           digest.add(bytes);
                       });
        return digest.digest();
    }

    std::uint64_t write_other(const ExportTensor& tensor, std::uint64_t offset) {
        const std::span<const std::byte> content = tensor.other->content();
        expects(content.size() == tensor.bytes, "a tensor has the bytes that its shape says");
        write_at(offset, content);
        return xxh3(content);
    }

    std::string index_path_;
    std::string path_;
    std::string out_path_;
    std::span<const ExportTensor> tensors_;
    std::vector<std::size_t> own_;
    std::vector<std::uint64_t> digests_;
    std::size_t bytes_;
    Descriptor file_;
};

// Throws an Error if what rank 0 wrote is not in the file.
void check_facts(const std::string& path, const Description& about,
                 std::span<const ExportTensor> tensors, std::span<const std::uint64_t> digests) {
    h5::StoredFile file(path);
    verify_seal(path, kExportFormat, elements_of(file));
    bool is_same = h5::read_text(file, "format") == kExportFormat.name &&
                   h5::read_text(file, "config") == about.config &&
                   h5::read_text(file, "model") == about.model &&
                   h5::read_text(file, "commit") == about.commit &&
                   h5::read_text(file, "site") == about.site &&
                   h5::read_number<std::int64_t>(file, "step") == about.step &&
                   h5::read_number<std::uint64_t>(file, "parameters") == about.parameters;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        is_same &= h5::read_number<std::uint64_t>(file, "xxh3", tensors[i].path()) == digests[i];
        for (const char* note : {"layout", "ties"}) {
            if (file.has_attribute(note, tensors[i].path())) {
                file.texts(file.attribute(note, tensors[i].path()));
            }
        }
    }
    if (!is_same) {
        refuse_read_back(path);
    }
}

void seal_export(const std::string& path, const Description& about,
                 std::span<const ExportTensor> tensors, std::span<const std::uint64_t> digests) {
    h5::File file = h5::open_file(path);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const std::string dataset_path = tensors[i].path();
        h5::Dataset dataset = h5::open_dataset(file, dataset_path);
        h5::write_number(dataset.get(), "xxh3", digests[i]);
        h5::finish(std::move(dataset), H5Dclose, text("write ", dataset_path));
    }
    h5::close_file(std::move(file), path);
    h5::StoredFile written(path);
    seal_file(path, kExportFormat, elements_of(written));
    sync_file(path);
    drop_cached(path);
    try {
        check_facts(path, about, tensors, digests);
    } catch (const Error& fault) {
        refuse_read_back(path, fault.what());
    }
}

}  // namespace

void export_checkpoint(const mpi::Communicator& world, const std::string& index_path,
                       const std::string& out_path, const ExportSettings& settings,
                       const TextsOf& texts, std::span<const OtherTensor> others) {
    std::vector<ExportTensor> tensors;
    Description about;
    world.together([&] {
        if (settings.dtype == Dtype::bf16) {
            throw ConfigError("Cannot export in bf16: HDF5 has no such type. Choose f32 or f16.");
        }
        about = Reader::open(index_path)->description();
        tensors = export_tensors(about, settings, others);
    });
    std::optional<PartialFile> file;
    std::optional<TextsBeside> beside;
    std::string partial;
    world.on_rank_0([&] {
        check_place(index_path, out_path);
        const std::string path = regular_output(out_path, "An export");
        const ModelTexts known = texts(about);
        beside.emplace(out_path, store::folder_of(path), known);
        file.emplace(path);
        partial = file->partial_path();
        report_unwritten(out_path, bytes_of(tensors),
                         [&] { make_file(partial, about, tensors, known); });
    });
    partial = world.broadcast(partial, 0);
    try {
        std::vector<std::uint64_t> digests;
        world.together(
            [&] { digests = Share(world, index_path, partial, out_path, tensors).write(); });
        world.sum(digests);
        world.on_rank_0([&] {
            report_unwritten(out_path, 0, [&] { seal_export(partial, about, tensors, digests); });
            beside->write();
            file->commit();
        });
    } catch (const Error&) {  // a program that ends by it would leave the partial file
        file.reset();
        throw;
    }
}

}  // namespace nearstep::checkpoint
